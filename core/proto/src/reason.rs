//! Why a connection is not on a link. Every such connection has exactly one reason.

use core::fmt;

macro_rules! reasons {
    ($($(#[doc = $doc:literal])* $name:ident = $code:literal, $text:literal;)*) => {
        /// Reason codes, stable: they travel in REFUSE messages and appear in `netacc_ss`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u16)]
        #[non_exhaustive]
        pub enum Reason { $($(#[doc = $doc])* $name = $code,)* }

        impl Reason {
            /// All reasons.
            pub const ALL: &'static [Reason] = &[$(Reason::$name),*];

            /// From a code off the wire; unknown codes become [`Reason::Unknown`].
            //= spec §9.1
            //# A receiver takes a code that it does not know for 65535.
            pub fn from_code(code: u16) -> Reason {
                match code { $($code => Reason::$name,)* _ => Reason::Unknown }
            }

            /// Short stable text, as `netacc_ss` shows it.
            pub fn as_str(self) -> &'static str {
                match self { $(Reason::$name => $text,)* }
            }

            /// The meaning, in a sentence or two.
            pub fn description(self) -> &'static str {
                match self { $(Reason::$name => concat!($($doc),*).trim_ascii_start(),)* }
            }
        }
    };
}

reasons! {
    /// It is on a link.
    None = 0, "none";
    /// Too young: promotion begins after a few operations.
    NotYet = 1, "not-yet";
    /// Promotion is in progress.
    Opening = 2, "opening";
    /// The configuration requires TCP.
    Disabled = 3, "disabled";
    /// No backend works on this machine.
    NoBackend = 4, "no-backend";
    /// The peer is on another host, which this backend does not reach.
    OtherHost = 5, "other-host";
    /// The peer does not run the library, as far as this side can find out.
    PeerNotFound = 6, "peer-not-accelerated";
    /// The peer has the connection but cannot promote it now.
    PeerBusy = 7, "peer-busy";
    /// The peer refused: it does not have this connection.
    UnknownStream = 8, "unknown-stream";
    /// The peer does not admit this process.
    NotAdmitted = 9, "not-admitted";
    /// The application wrote before the peer had answered.
    PledgeVoided = 10, "pledge-voided";
    /// No memory could be registered.
    MemoryLimit = 11, "memory-limit";
    /// The device or the link has no room.
    Exhausted = 12, "exhausted";
    /// The link died.
    LinkFailed = 13, "link-failed";
    /// The fd is shared with another process (fork, exec, SCM_RIGHTS).
    Shared = 14, "shared";
    /// An operation was requested that only the kernel can do.
    KernelOnly = 15, "kernel-only-operation";
    /// An operator requested it.
    Requested = 16, "requested";
    /// The peer requested it.
    PeerRequest = 17, "peer-request";
    /// The directory of connections is full.
    DirectoryFull = 18, "directory-full";
    /// A draw against NACC_CONNECT_RDMA_PERCENT kept it on TCP.
    Percent = 19, "percent";
    /// The connection existed before the library saw it (inherited or received fd).
    Inherited = 20, "inherited";
    /// Not a TCP stream.
    NotTcp = 21, "not-tcp";
    /// The peer broke the protocol.
    Violation = 22, "protocol-violation";
    /// The connection is closing.
    Closing = 23, "closing";
    /// Bytes passed on the kernel socket that the library did not see.
    UnseenIo = 24, "unseen-io";
    /// The link had no room and the peer took nothing from it: the kernel's buffers are larger.
    PeerIdle = 25, "peer-idle";
    /// TCP port + 20000 is not a port: peers could not request a link there.
    NoLinkPort = 26, "no-link-port";
    /// Another process of the peer's host holds the connection.
    HeldElsewhere = 27, "held-elsewhere";
    /// One end of the link has a pre-shared key and the other has none, or has not proven that it has one.
    KeyMissing = 28, "key-missing";
    /// The two ends of the link have different pre-shared keys.
    KeyMismatch = 29, "key-mismatch";
    /// NACC_CONN_TCP_FIRST: connections that this process has opened stay on TCP until promotion is requested.
    TcpFirst = 30, "tcp-first";
    /// Answers take longer on the link than on TCP.
    LinkSlower = 31, "link-slower";
    /// The device that reaches other hosts is absent. It may appear, or come back.
    DeviceAbsent = 32, "device-absent";
    /// Another process has the port at which peers would request a link.
    LinkPortTaken = 33, "link-port-taken";
    /// The process has no descriptor left for links (RLIMIT_NOFILE).
    DescriptorLimit = 34, "descriptor-limit";
    /// The helper thread could not be started (RLIMIT_NPROC).
    ThreadLimit = 35, "thread-limit";
    /// The program confines itself by a system call filter that does not permit the calls that links need.
    Sandboxed = 36, "sandboxed";
    /// The peer's process belongs to another user.
    PeerOtherUser = 37, "peer-other-user";
    /// The connection is established, but the peer's program has not accepted it yet.
    PeerNotAccepted = 38, "peer-not-accepted";
    /// The peer's process runs the library and keeps the connection on TCP: `netacc_ss` shows the reason there.
    PeerKeepsTcp = 39, "peer-keeps-tcp";
    /// The peer's process runs the library, but does not share this one's directory of connections: its mount namespace
    /// or `NACC_SHM_GROUP` is another.
    PeerApart = 40, "peer-apart";
    /// No process of the folder `NACC_SHM_DIR` offers the other end: it is on another host or without that folder, is not
    /// accelerated, or sees other addresses, because they are translated on the way.
    PeerElsewhere = 41, "peer-elsewhere";
    /// The datagrams go to a multicast or broadcast address, and so to several receivers.
    GroupAddress = 42, "group-address";
    /// An option of the UDP socket is served within a host only: `UDP_GRO`, and times of arrival.
    HostOption = 43, "host-option";
    /// Another flow of the same UDP socket goes to the same receiver, which could not tell their datagrams apart.
    SameReceiver = 44, "same-receiver";
    /// The kernel has not brought the receiver a datagram from the sender's address yet.
    SourceUnknown = 45, "source-unknown";
    /// A code that this version does not define.
    Unknown = 65535, "unknown";
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    //= spec §9.1
    //= type=test
    //# The reason in REFUSE is one of these codes.
    #[test]
    fn the_specification_lists_every_reason() {
        let specification = include_str!("../SPEC.md");
        let (_, rest) = specification.split_once("\n## 9. Reason codes\n").expect("the chapter");
        let (chapter, _) = rest.split_once("\n## ").unwrap_or((rest, ""));
        let rows: Vec<[&str; 3]> = chapter
            .lines()
            .filter_map(|line| {
                line.strip_prefix("| ")?.strip_suffix(" |")?.split(" | ").collect::<Vec<_>>().try_into().ok()
            })
            .skip(2)
            .collect();
        assert_eq!(rows.len(), Reason::ALL.len());
        for ([code, name, meaning], reason) in rows.into_iter().zip(Reason::ALL) {
            assert_eq!((code.parse(), name, meaning), (Ok(*reason as u16), reason.as_str(), reason.description()));
            assert_eq!(Reason::from_code(*reason as u16), *reason);
        }
        assert_eq!(Reason::from_code(65534), Reason::Unknown);
    }
}
