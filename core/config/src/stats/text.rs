//! Short text without memory of its own: a process may have 20,000 sockets with four such texts each.

use std::fmt;
use std::net::SocketAddr;
use std::ops::Deref;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// As many bytes need no memory of their own: every address of IPv4 has at most 21, and a text is as large as a `String`.
const INLINE: usize = 22;

/// A text that hardly ever changes, and is mostly short.
#[derive(Clone)]
pub struct Text(Repr);

#[derive(Clone)]
enum Repr {
    /// Invariant: the first `len` bytes are UTF-8.
    Inline {
        len: u8,
        bytes: [u8; INLINE],
    },
    Heap(Box<str>),
}

impl Text {
    const EMPTY: Self = Self(Repr::Inline { len: 0, bytes: [0; INLINE] });

    /// The text.
    pub fn as_str(&self) -> &str {
        match &self.0 {
            Repr::Inline { len, bytes } => std::str::from_utf8(&bytes[..usize::from(*len)]).unwrap_or_default(),
            Repr::Heap(text) => text,
        }
    }
}

impl Default for Text {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        let mut bytes = [0; INLINE];
        match bytes.get_mut(..text.len()) {
            Some(place) => {
                place.copy_from_slice(text.as_bytes());
                Self(Repr::Inline { len: text.len() as u8, bytes })
            }
            None => Self(Repr::Heap(text.into())),
        }
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        text.as_str().into()
    }
}

impl From<SocketAddr> for Text {
    fn from(address: SocketAddr) -> Self {
        let SocketAddr::V4(address) = address else { return address.to_string().into() };
        let mut line = Line { len: 0, bytes: [0; INLINE] };
        for (octet, after) in address.ip().octets().into_iter().zip(*b"...:") {
            line.number(octet.into());
            line.push(after);
        }
        line.number(address.port());
        Self(Repr::Inline { len: line.len as u8, bytes: line.bytes })
    }
}

/// An address of IPv4 in the making: the standard library's way takes ten times as long.
struct Line {
    len: usize,
    bytes: [u8; INLINE],
}

impl Line {
    fn push(&mut self, byte: u8) {
        self.bytes[self.len] = byte;
        self.len += 1;
    }

    fn number(&mut self, number: u16) {
        let mut unit = [10_000, 1000, 100, 10].into_iter().find(|unit| number >= *unit).unwrap_or(1);
        while unit > 0 {
            self.push(b'0' + (number / unit % 10) as u8);
            unit /= 10;
        }
    }
}

impl PartialEq for Text {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Text {}

impl PartialEq<str> for Text {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<&str> for Text {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Text;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_str<E>(self, text: &str) -> Result<Text, E> {
                Ok(text.into())
            }
        }
        deserializer.deserialize_str(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Breaks if texts that are short took more memory than a `String` does without its contents.
    #[test]
    fn a_text_is_small() {
        assert_eq!(size_of::<Text>(), size_of::<String>());
    }

    #[test]
    fn texts_of_any_length_stay_as_they_are() {
        for len in [0, 1, INLINE - 1, INLINE, INLINE + 1, 1000] {
            let text = "x".repeat(len);
            assert_eq!(Text::from(text.as_str()), *text);
            assert_eq!(serde_json::to_string(&Text::from(text.clone())).ok(), serde_json::to_string(&text).ok());
            assert_eq!(serde_json::from_str::<Text>(&format!("{text:?}")).ok(), Some(Text::from(text)));
        }
        assert_eq!(serde_json::from_str::<Text>(r#""\u6771\n""#).ok(), Some(Text::from("\u{6771}\n")));
    }

    #[test]
    fn addresses_are_written_as_the_standard_library_writes_them() {
        let addresses = ["0.0.0.0:0", "255.255.255.255:65535", "10.200.3.99:9", "1.20.100.101:10000", "127.0.0.1:6379"];
        let longest = "[fe80:1111:2222:3333:4444:5555:6666:7777]:65535";
        for written in addresses.into_iter().chain(["[::1]:80", longest]) {
            let address: SocketAddr = written.parse().expect("an address");
            assert_eq!(Text::from(address), written);
        }
    }
}
