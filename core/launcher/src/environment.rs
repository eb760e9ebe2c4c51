//! The environment of the program: that of this process, with changes.
//!
//! A list of its own instead of the C library's, whose functions copy each variable, and search all of them at each call.

use std::borrow::Cow;
use std::ffi::{CStr, CString, OsStr};
use std::os::unix::ffi::OsStrExt;

/// The strings of an environment. Strings without `=`, and variables that are there twice, stay as they are.
#[derive(Clone, Debug, Default)]
pub(super) struct Environment(Vec<Cow<'static, CStr>>);

impl Environment {
    /// The environment of these strings.
    pub(super) fn new(strings: impl IntoIterator<Item = &'static CStr>) -> Self {
        Self(strings.into_iter().map(Cow::Borrowed).collect())
    }

    /// The first variable of this name.
    pub(super) fn get(&self, name: &str) -> Option<&OsStr> {
        self.0.iter().find_map(|string| value_of(string, name))
    }

    /// Replaces the first variable of this name, or adds it.
    pub(super) fn set(&mut self, name: &str, value: impl AsRef<OsStr>) {
        let bytes = [name.as_bytes(), b"=", value.as_ref().as_bytes()].concat();
        // The values are paths that the kernel has taken, and arguments.
        let string = Cow::Owned(CString::new(bytes).expect("C strings have no zero byte"));
        match self.0.iter_mut().find(|string| value_of(string, name).is_some()) {
            Some(old) => *old = string,
            None => self.0.push(string),
        }
    }

    /// All variables: names and values.
    pub(super) fn variables(&self) -> impl Iterator<Item = (&OsStr, &OsStr)> {
        self.0.iter().filter_map(|string| split(string))
    }

    /// In the form of `execve`.
    pub(super) fn strings(&self) -> &[Cow<'static, CStr>] {
        &self.0
    }
}

/// The value, if the variable has this name.
fn value_of<'a>(string: &'a CStr, name: &str) -> Option<&'a OsStr> {
    let value = string.to_bytes().strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
    Some(OsStr::from_bytes(value))
}

/// A name may begin with `=`, as in the standard library.
fn split(string: &CStr) -> Option<(&OsStr, &OsStr)> {
    let bytes = string.to_bytes();
    let end = bytes.iter().skip(1).position(|byte| *byte == b'=')? + 1;
    Some((OsStr::from_bytes(&bytes[..end]), OsStr::from_bytes(&bytes[end + 1..])))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment() -> Environment {
        Environment::new([c"A=1", c"no variable", c"AB=2", c"A=3", c"=C=4", c""])
    }

    #[test]
    fn the_first_variable_of_a_name_counts() {
        let environment = environment();
        let get = |name| environment.get(name).map(|value| value.to_str().expect("text"));
        assert_eq!([get("A"), get("AB"), get("=C"), get("B")], [Some("1"), Some("2"), Some("4"), None]);
        let names: Vec<_> = environment.variables().map(|(name, _)| name).collect();
        assert_eq!(names, ["A", "AB", "A", "=C"]);
    }

    #[test]
    fn a_change_leaves_the_rest_as_it_is() {
        let mut environment = environment();
        environment.set("A", "x");
        environment.set("D", "");
        let strings: Vec<_> = environment.strings().iter().map(|string| string.to_str().expect("text")).collect();
        assert_eq!(strings, ["A=x", "no variable", "AB=2", "A=3", "=C=4", "", "D="]);
    }
}
