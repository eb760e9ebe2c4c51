//! The time of a plan: `plan FILE [ROUNDS]` prints the length of the program's code, the changes, and the shortest time in ms.

use std::time::Instant;

use netacc_loader::elf::Elf;
use netacc_loader::plan::Plan;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let file = std::fs::read(words.next().ok_or("a file is missing")?)?;
    let rounds = words.next().map_or(Ok(20), |word| word.parse())?;
    let elf = Elf::parse(&file)?;
    let code = elf.section(b".text").map_or(0, |text| text.file.len());
    let mut least = f64::INFINITY;
    let mut changes = 0;
    for _ in 0..rounds {
        let begin = Instant::now();
        changes = Plan::new(&elf)?.patches.len();
        least = least.min(begin.elapsed().as_secs_f64() * 1e3);
    }
    println!("{code} bytes of code, {changes} changes, {least:.2} ms");
    Ok(())
}
