//! `netacc pages FOLDER`: manual pages and shell completions of `netacc`, made from its arguments. Packages have them.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Command};
use clap_complete::Shell;

/// Where.
#[derive(Debug, Args)]
pub struct PagesArgs {
    /// A folder: gets `man`, `bash`, `zsh` and `fish`
    folder: PathBuf,
}

/// Writes them.
pub fn run(args: &PagesArgs, command: Command) -> ExitCode {
    match write(args, command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("netacc pages: {}: {error}", args.folder.display());
            ExitCode::FAILURE
        }
    }
}

fn write(args: &PagesArgs, command: Command) -> io::Result<()> {
    let mut command = without_help(command);
    for (folder, shell) in [("bash", Shell::Bash), ("zsh", Shell::Zsh), ("fish", Shell::Fish)] {
        let folder = args.folder.join(folder);
        fs::create_dir_all(&folder)?;
        clap_complete::generate_to(shell, &mut command, "netacc", &folder)?;
    }
    let manual = args.folder.join("man");
    fs::create_dir_all(&manual)?;
    clap_mangen::generate_to(command, &manual)
}

/// `netacc help bench` shows what `netacc bench --help` does, so it needs no page.
fn without_help(command: Command) -> Command {
    command.disable_help_subcommand(true).mut_subcommands(without_help)
}
