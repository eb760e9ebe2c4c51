//! The connection manager: ids, their events, and their queue pairs.

use std::io;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::RawFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::abi;
use super::library::Library;
use super::objects::{never_block, Context, Cq, Pd};
use super::requests::{init_attr, QueuePair};
use super::wakeup::raised;

/// The channel of the events of all our ids.
pub(crate) struct EventChannel {
    library: &'static Library,
    raw: NonNull<abi::RdmaEventChannel>,
}

// SAFETY: librdmacm allows every call on a channel from any thread.
unsafe impl Send for EventChannel {}
// SAFETY: as above.
unsafe impl Sync for EventChannel {}

/// The identity of an id as long as it lives.
pub(crate) type Key = usize;

/// An event of an id.
pub(crate) struct Event {
    /// The id.
    pub(crate) id: Key,
    pub(crate) kind: EventKind,
    pub(crate) private_data: Vec<u8>,
}

pub(crate) enum EventKind {
    AddressResolved,
    RouteResolved,
    /// A peer wants to connect to the id that listens; here is the id for it.
    ConnectRequest(CmId),
    Established,
    /// The attempt failed: it was refused, or no process listens there, or the address leads nowhere.
    Refused,
    Unreachable,
    Disconnected,
    DeviceRemoved,
    /// An event that does not concern us.
    Other,
}

impl EventChannel {
    /// A channel whose descriptor never blocks.
    ///
    /// # Errors
    /// Fails if the kernel has no connection manager (module rdma_ucm), or we may not use it.
    pub(crate) fn new(library: &'static Library) -> io::Result<Arc<EventChannel>> {
        let _number = netacc_descriptors::borrow();
        // SAFETY: no arguments.
        let raw = unsafe { (library.rdma_create_event_channel)() };
        let mut raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: the channel is ours; librdmacm goes by this field.
        unsafe { raw.as_mut().fd = raised(raw.as_ref().fd) };
        let channel = EventChannel { library, raw };
        never_block(channel.fd())?;
        Ok(Arc::new(channel))
    }

    pub(crate) fn fd(&self) -> RawFd {
        // SAFETY: the channel lives.
        unsafe { self.raw.as_ref().fd }
    }

    /// Takes the next event, if there is one. It is acknowledged at once, so that ids can be destroyed at any time.
    pub(crate) fn next_event(self: &Arc<Self>) -> Option<Event> {
        let mut raw = ptr::null_mut();
        // SAFETY: the channel lives; `raw` is writable.
        if unsafe { (self.library.rdma_get_cm_event)(self.raw.as_ptr(), &raw mut raw) } != 0 {
            return None;
        }
        // SAFETY: an event is ours until it is acknowledged; its private data is as long as it says.
        let event = unsafe {
            let event = &*raw;
            let conn = event.conn;
            let private_data = if carries_private_data(event.event) && !conn.private_data.is_null() {
                std::slice::from_raw_parts(conn.private_data.cast::<u8>(), usize::from(conn.private_data_len)).to_vec()
            } else {
                Vec::new()
            };
            let (id, kind) = match (event.event, NonNull::new(event.id)) {
                (4, Some(id)) => {
                    let id = CmId { channel: Arc::clone(self), raw: id, cq: None };
                    (event.listen_id as Key, EventKind::ConnectRequest(id))
                }
                (code, _) => (event.id as Key, kind(code)),
            };
            Event { id, kind, private_data }
        };
        // SAFETY: taken above, acknowledged once.
        unsafe { (self.library.rdma_ack_cm_event)(raw) };
        Some(event)
    }
}

fn carries_private_data(event: i32) -> bool {
    matches!(event, 4 | 5 | 8 | 9)
}

/// The numbers are those of `enum rdma_cm_event_type`.
fn kind(event: i32) -> EventKind {
    match event {
        0 => EventKind::AddressResolved,
        2 => EventKind::RouteResolved,
        8 => EventKind::Refused,
        1 | 3 | 6 | 7 => EventKind::Unreachable,
        9 => EventKind::Established,
        10 => EventKind::Disconnected,
        11 => EventKind::DeviceRemoved,
        _ => EventKind::Other,
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        // SAFETY: created by us; its ids hold the Arc, and so are gone.
        unsafe { (self.library.rdma_destroy_event_channel)(self.raw.as_ptr()) };
    }
}

/// An id of the connection manager, with its queue pair once that is made.
pub(crate) struct CmId {
    channel: Arc<EventChannel>,
    raw: NonNull<abi::RdmaCmId>,
    /// Kept until the queue pair is gone.
    cq: Option<(Arc<Cq>, Arc<Pd>)>,
}

// SAFETY: librdmacm allows every call on an id from any thread; `&mut self` guards those that change it here.
unsafe impl Send for CmId {}
// SAFETY: as above.
unsafe impl Sync for CmId {}

/// The parameters that both ends exchange when they connect.
pub(crate) struct ConnectParameters<'a> {
    pub(crate) private_data: &'a [u8],
    /// A message that finds no receive is tried again; otherwise it ends the connection.
    pub(crate) waits_for_receive: bool,
}

impl CmId {
    pub(crate) fn new(channel: &Arc<EventChannel>) -> io::Result<CmId> {
        let mut raw = ptr::null_mut();
        // SAFETY: the channel lives and is kept by the id; `raw` is writable.
        let status = unsafe {
            (channel.library.rdma_create_id)(channel.raw.as_ptr(), &raw mut raw, ptr::null_mut(), abi::PS_TCP)
        };
        let raw = NonNull::new(raw).filter(|_| status == 0).ok_or_else(io::Error::last_os_error)?;
        Ok(CmId { channel: Arc::clone(channel), raw, cq: None })
    }

    pub(crate) fn key(&self) -> Key {
        self.raw.as_ptr() as Key
    }

    /// The device that the id is bound to, once it is.
    pub(crate) fn context(&self) -> Option<Context> {
        // SAFETY: the id lives.
        let raw = NonNull::new(unsafe { self.raw.as_ref().verbs })?;
        Some(Context { library: self.channel.library, raw })
    }

    pub(crate) fn bind(&self, address: SocketAddr) -> io::Result<()> {
        let mut storage = Sockaddr::new(address);
        // SAFETY: the id lives; the address is a whole socket address.
        check(unsafe { (self.channel.library.rdma_bind_addr)(self.raw.as_ptr(), storage.as_mut_ptr()) })
    }

    pub(crate) fn listen(&self, backlog: i32) -> io::Result<u16> {
        // SAFETY: the id lives.
        check(unsafe { (self.channel.library.rdma_listen)(self.raw.as_ptr(), backlog) })?;
        // SAFETY: as above.
        Ok(u16::from_be(unsafe { (self.channel.library.rdma_get_src_port)(self.raw.as_ptr()) }))
    }

    pub(crate) fn resolve_address(&self, from: SocketAddr, to: SocketAddr, timeout_ms: i32) -> io::Result<()> {
        let (mut from, mut to) = (Sockaddr::new(from), Sockaddr::new(to));
        // SAFETY: the id lives; both are whole socket addresses.
        check(unsafe {
            (self.channel.library.rdma_resolve_addr)(self.raw.as_ptr(), from.as_mut_ptr(), to.as_mut_ptr(), timeout_ms)
        })
    }

    /// Makes the device repeat unacknowledged packets soon. Other devices than RoCE have no such option, and bounds of
    /// their own.
    pub(crate) fn hurry(&self) {
        let mut timeout = ACK_TIMEOUT;
        // SAFETY: the id lives; the option's value is one byte. Refused if the device or the kernel does not support
        // it.
        unsafe {
            let value = (&raw mut timeout).cast();
            (self.channel.library.rdma_set_option)(self.raw.as_ptr(), 0, OPTION_ACK_TIMEOUT, value, 1);
        }
    }

    pub(crate) fn resolve_route(&self, timeout_ms: i32) -> io::Result<()> {
        // SAFETY: the id lives.
        check(unsafe { (self.channel.library.rdma_resolve_route)(self.raw.as_ptr(), timeout_ms) })
    }

    /// Makes the queue pair. Its completions go to `cq`.
    pub(crate) fn create_qp(&mut self, pd: &Arc<Pd>, cq: &Arc<Cq>, cap: abi::QpCap) -> io::Result<QueuePair> {
        let mut init = init_attr(cq, cap);
        // SAFETY: id, domain and queue live; both are kept until the queue pair is gone.
        check(unsafe { (self.channel.library.rdma_create_qp)(self.raw.as_ptr(), pd.raw.as_ptr(), &raw mut init) })?;
        self.cq = Some((Arc::clone(cq), Arc::clone(pd)));
        // SAFETY: the id lives and has a queue pair now.
        let raw = NonNull::new(unsafe { self.raw.as_ref().qp });
        let raw = raw.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
        Ok(QueuePair { library: self.channel.library, raw })
    }

    pub(crate) fn connect(&self, parameters: &ConnectParameters<'_>) -> io::Result<()> {
        let mut raw = conn_param(parameters);
        // SAFETY: the id lives; the private data is copied by the call.
        check(unsafe { (self.channel.library.rdma_connect)(self.raw.as_ptr(), &raw mut raw) })
    }

    pub(crate) fn accept(&self, parameters: &ConnectParameters<'_>) -> io::Result<()> {
        let mut raw = conn_param(parameters);
        // SAFETY: as above.
        check(unsafe { (self.channel.library.rdma_accept)(self.raw.as_ptr(), &raw mut raw) })
    }

    pub(crate) fn reject(&self) {
        // SAFETY: the id lives.
        unsafe { (self.channel.library.rdma_reject)(self.raw.as_ptr(), ptr::null(), 0) };
    }

    /// Whether the other end cannot be informed now: the port has lost its network.
    pub(crate) fn is_cut_off(&self) -> bool {
        // SAFETY: the id lives.
        let port = unsafe { self.raw.as_ref().port_num };
        self.context().is_some_and(|context| context.is_cut_off(port))
    }

    /// Begins to disconnect. Both ends get the event, or only the other one.
    pub(crate) fn disconnect(&self) -> io::Result<()> {
        // SAFETY: the id lives.
        check(unsafe { (self.channel.library.rdma_disconnect)(self.raw.as_ptr()) })
    }

    /// Destroys the queue pair; the id lives until the peer has answered its last message.
    pub(crate) fn destroy_qp(&mut self) {
        if self.cq.is_some() {
            // SAFETY: the id lives and has a queue pair; no `QueuePair` is used any more, which its owner sees to.
            unsafe { (self.channel.library.rdma_destroy_qp)(self.raw.as_ptr()) };
            self.cq = None;
        }
    }

    /// The address of the other end.
    pub(crate) fn peer(&self) -> Option<IpAddr> {
        // SAFETY: the id lives; the field is a whole sockaddr_storage.
        let bytes = unsafe { self.raw.as_ref().dst_addr };
        parse(&bytes)
    }
}

impl Drop for CmId {
    fn drop(&mut self) {
        self.destroy_qp();
        // SAFETY: created by us or given to us by an event, destroyed once; no event of it is unacknowledged.
        unsafe { (self.channel.library.rdma_destroy_id)(self.raw.as_ptr()) };
    }
}

fn check(status: i32) -> io::Result<()> {
    if status == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// The number of times that the device sends an unacknowledged packet again before the queue pair fails. Seven would be
/// for ever, to SoftRoCE: an unreachable peer would never be detected.
const RETRIES: u8 = 6;

/// The number of times that it tries again to send to a peer without a receive: for ever, in the encoding of
/// `ibv_modify_qp`.
const RECEIVER_RETRIES: u8 = 7;

/// 4.096 us * 2^15 = 134 ms until a packet is sent again; so a dead path is left after a second. Arbitrary: many round
/// trips of any network in which RDMA makes sense. The kernel's choice for RoCE, 2 s, makes 15 s of it, and each lost
/// packet costs 2 s.
const ACK_TIMEOUT: u8 = 15;

/// `RDMA_OPTION_ID_ACK_TIMEOUT`, of level `RDMA_OPTION_ID`, which is 0.
const OPTION_ACK_TIMEOUT: i32 = 3;

fn conn_param(parameters: &ConnectParameters<'_>) -> abi::RdmaConnParam {
    abi::RdmaConnParam {
        private_data: parameters.private_data.as_ptr().cast(),
        private_data_len: u8::try_from(parameters.private_data.len()).unwrap_or(u8::MAX),
        responder_resources: 1,
        initiator_depth: 1,
        flow_control: 0,
        retry_count: RETRIES,
        rnr_retry_count: if parameters.waits_for_receive { RECEIVER_RETRIES } else { 0 },
        srq: 0,
        qp_num: 0,
    }
}

/// A socket address as C has it.
#[repr(C)]
union Sockaddr {
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
    _storage: libc::sockaddr_storage,
}

impl Sockaddr {
    fn new(address: SocketAddr) -> Sockaddr {
        // SAFETY: all zeros is a valid sockaddr_storage.
        let mut storage: Sockaddr = unsafe { mem::zeroed() };
        match address {
            SocketAddr::V4(v4) => {
                storage.v4 = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: v4.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from(*v4.ip()).to_be() },
                    sin_zero: [0; 8],
                };
            }
            SocketAddr::V6(v6) => {
                storage.v6 = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: v6.port().to_be(),
                    sin6_flowinfo: 0,
                    sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                    sin6_scope_id: v6.scope_id(),
                };
            }
        }
        storage
    }

    fn as_mut_ptr(&mut self) -> *mut libc::sockaddr {
        (&raw mut *self).cast()
    }
}

/// The address in a `sockaddr_storage`.
fn parse(words: &[u64; 16]) -> Option<IpAddr> {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    match i32::from(u16::from_ne_bytes([bytes[0], bytes[1]])) {
        libc::AF_INET => Some(Ipv4Addr::new(bytes[4], bytes[5], bytes[6], bytes[7]).into()),
        libc::AF_INET6 => <[u8; 16]>::try_from(&bytes[8..24]).ok().map(|octets| Ipv6Addr::from(octets).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Breaks if a message without a receive ended the connection although it may wait (with any number but the one
    /// that means for ever, it would in the end); or if a dead path were never left.
    #[test]
    fn a_message_waits_for_its_receive_for_ever_or_not_at_all() {
        for (waits_for_receive, retries) in [(true, 7), (false, 0)] {
            let raw = conn_param(&ConnectParameters { private_data: b"told", waits_for_receive });
            assert_eq!((raw.rnr_retry_count, raw.retry_count), (retries, 6));
            assert_eq!((raw.private_data_len, raw.srq, raw.qp_num), (4, 0, 0));
            assert!(!raw.private_data.is_null());
        }
    }
}
