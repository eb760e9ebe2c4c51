//! Calls that send: the datagrams take a ring, or go by the kernel, or both one after the other.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use libc::{iovec, mmsghdr, msghdr, sockaddr, socklen_t};
use netacc_datagram::Marks;
use netacc_driver::{Endpoint, SendingFlow};

use super::{count, elements, vector, Target};
use crate::datagram::{Address, Control, Datagram, Outgoing, Way, MOST_CONTROL};
use crate::ops::{announcing, message};
use crate::os::asleep::asleep;
use crate::os::errno::{errno, set_errno};
use crate::os::{access, real};

/// Flags of `send` that mean nothing for a ring.
const SEND_FLAGS: c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_CONFIRM;
/// UDP's longest datagram over IPv4. The kernel refuses longer ones.
const LONGEST: usize = 65_507;

/// The longest datagram of a send of several, and how many there may be: the kernel may take more.
const LONGEST_SEGMENT: usize = 1472;
const MOST_SEGMENTS: usize = 64;

/// A datagram that the program sends.
pub(super) struct Outbound<'a> {
    /// Its bytes.
    pub iov: &'a [iovec],
    /// The flags of the call.
    pub flags: c_int,
    /// The destination, or null.
    pub to: (*const sockaddr, socklen_t),
    /// What its control messages ask for.
    pub control: Control,
    /// Its control messages, as the program has written them.
    pub messages: (*mut c_void, usize),
}

impl<'a> Outbound<'a> {
    /// One without control messages.
    fn plain(iov: &'a [iovec], flags: c_int, to: (*const sockaddr, socklen_t)) -> Outbound<'a> {
        Outbound { iov, flags, to, control: Control::NOTHING, messages: (std::ptr::null_mut(), 0) }
    }
}

/// How a call's datagrams can take a ring.
struct Plan {
    /// Bytes of all of them.
    len: usize,
    /// Bytes of each, but for the last one, which may be shorter.
    each: usize,
    marks: Marks,
}

impl Plan {
    /// Of a call that a ring can serve.
    fn new(outgoing: &mut Outgoing, outbound: &Outbound<'_>, to: &Address) -> Option<Plan> {
        let Control::Usual(asked) = outbound.control else { return None };
        if outbound.flags & !SEND_FLAGS != 0 || asked.source.is_some_and(|source| !outgoing.may_come_from(to, source)) {
            return None;
        }
        let len = readable(outbound.iov)?;
        let is_v4 = to.is_v4();
        let marks = asked.marks(is_v4, outgoing.marks[usize::from(!is_v4)])?;
        let each = split(outgoing, outbound, len);
        // The kernel refuses more, and longer ones by the path's MTU.
        let fits = each == len || each <= LONGEST_SEGMENT && len.div_ceil(each) <= MOST_SEGMENTS;
        fits.then_some(Plan { len, each, marks })
    }
}

/// Bytes of each datagram of a call that sends `len` bytes.
fn split(outgoing: &Outgoing, outbound: &Outbound<'_>, len: usize) -> usize {
    let asked = match outbound.control {
        Control::Usual(asked) => asked.segment,
        Control::Other(segment) => segment,
    };
    match usize::from(asked.unwrap_or(outgoing.segment)) {
        0 => len,
        segment => segment.min(len),
    }
}

/// Bytes `skip..skip + len` of a vector.
fn part(iov: &[iovec], mut skip: usize, mut len: usize) -> impl Iterator<Item = (*const u8, usize)> + '_ {
    iov.iter().map_while(move |v| {
        let skipped = skip.min(v.iov_len);
        skip -= skipped;
        let n = (v.iov_len - skipped).min(len);
        len -= n;
        (n > 0 || len > 0).then_some((v.iov_base.cast::<u8>().cast_const().wrapping_add(skipped), n))
    })
}

/// What has become of a call's datagrams.
struct Placed {
    /// Bytes of those that took the ring, or were dropped as the kernel would have dropped them.
    done: usize,
    /// How the rest goes, and how many datagrams that is; none if nothing is left.
    rest: Option<(Way, u64)>,
}

/// Gives datagrams to the ring of their flow, as long as it takes them.
///
/// # Safety
/// The vector is readable.
#[inline]
unsafe fn place(socket: &Datagram, iov: &[iovec], to: &Address, plan: &Plan, outgoing: &mut Outgoing) -> Placed {
    let Plan { len, each, marks } = *plan;
    let total = if each == len { 1 } else { len.div_ceil(each) as u64 };
    if total > 1 && !outgoing.has_room_for(to, total, len, each) {
        // Not in two parts, of which the kernel could refuse the second one.
        outgoing.begin_by_kernel(to, total);
        return Placed { done: 0, rest: Some((Way::Kernel, total)) };
    }
    for number in 0..total {
        let done = number as usize * each;
        let n = each.min(len - done);
        // SAFETY: passed on.
        match unsafe { outgoing.send(to, (part(iov, done, n), n), marks, total - number) } {
            Way::Link => count(&socket.counts().tx_link, 1),
            Way::Dropped => count(&socket.counts().dropped, 1),
            way => return Placed { done, rest: Some((way, total - number)) },
        }
    }
    Placed { done: len, rest: None }
}

/// Sends the bytes of a call from `done` on by the kernel.
///
/// # Safety
/// As the C function.
#[cold]
unsafe fn send_rest(fd: c_int, outbound: &Outbound<'_>, done: usize) -> isize {
    let left = part(outbound.iov, done, usize::MAX);
    let iov: Vec<iovec> = left.map(|(from, n)| message::single(from.cast(), n)).collect();
    // SAFETY: all-zero is a valid header.
    let mut header: msghdr = unsafe { std::mem::zeroed() };
    header.msg_name = outbound.to.0.cast_mut().cast();
    header.msg_namelen = if outbound.to.0.is_null() { 0 } else { outbound.to.1 };
    header.msg_iov = iov.as_ptr().cast_mut();
    header.msg_iovlen = iov.len();
    (header.msg_control, header.msg_controllen) = outbound.messages;
    // SAFETY: as the C function.
    unsafe { real::sendmsg(fd, &header, outbound.flags) }
}

/// `send`, `sendto`, `sendmsg` and `write`: on the ring of the flow, or by `kernel`, the call as the program has made it.
///
/// # Safety
/// As the C function.
#[inline]
pub(super) unsafe fn send(t: Target<'_>, outbound: &Outbound<'_>, kernel: impl FnOnce() -> isize) -> isize {
    let Target { socket, fd } = t;
    // SAFETY: as the C function.
    let to = match unsafe { destination(t, outbound.to) } {
        Some(to) if !socket.is_kernel_only() => to,
        _ => {
            let sent = kernel();
            if sent >= 0 {
                count(&socket.counts().tx_kernel, 1);
            }
            return sent;
        }
    };
    let mut outgoing = socket.outgoing();
    let placed = match Plan::new(&mut outgoing, outbound, &to) {
        // SAFETY: found to be readable.
        Some(plan) => unsafe { place(socket, outbound.iov, &to, &plan, &mut outgoing) },
        None => {
            //= spec §10.2.5
            //# A send of several datagrams (`UDP_SEGMENT`) is as many records, and counts as many sends where it goes by
            //# the kernel.
            let datagrams = readable(outbound.iov).map_or(1, |len| match split(&outgoing, outbound, len) {
                0 => 1,
                each => len.div_ceil(each) as u64,
            });
            outgoing.begin_by_kernel(&to, datagrams);
            Placed { done: 0, rest: Some((Way::Kernel, datagrams)) }
        }
    };
    let due = outgoing.take_due_poll(&to);
    let Some((way, datagrams)) = placed.rest else {
        drop(outgoing);
        poll(due);
        return placed.done as isize;
    };
    outgoing.resend_reclaimed(fd, &to, socket.counts());
    drop(outgoing);
    poll(due);
    // SAFETY: as the C function.
    let sent = asleep(|| if placed.done == 0 { kernel() } else { unsafe { send_rest(fd, outbound, placed.done) } });
    let saved = errno();
    socket.outgoing().end_by_kernel(&to, datagrams, sent >= 0);
    if sent >= 0 {
        count(&socket.counts().tx_kernel, datagrams);
        if socket.count_kernel_call() {
            announcing::announce(socket, fd);
        }
        if way == Way::KernelThenRequest {
            announcing::want(socket, fd, to);
        }
    }
    crate::os::errno::set_errno(saved);
    match (sent, placed.done) {
        (sent, 0) => sent,
        // Those that took the ring have gone.
        (sent, done) => sent.max(0) + done as isize,
    }
}

/// Handles what has come on a link that a flow uses. Keeps errno.
#[inline]
fn poll(due: Option<(&Endpoint, Arc<SendingFlow>)>) {
    if let Some((endpoint, flow)) = due {
        let saved = errno();
        endpoint.poll_sending(&flow);
        set_errno(saved);
    }
}

/// The length of a datagram whose bytes can be read, and which is not too long.
#[inline]
fn readable(iov: &[iovec]) -> Option<usize> {
    let mut len = 0usize;
    for v in iov {
        len = len.checked_add(v.iov_len).filter(|len| *len <= LONGEST)?;
        if access::readable(v.iov_base.cast::<u8>(), v.iov_len) < v.iov_len {
            return None;
        }
    }
    Some(len)
}

/// Where a datagram goes: the address of the call, or that which the socket is connected to.
///
/// # Safety
/// As the C function.
#[inline]
unsafe fn destination(t: Target<'_>, (addr, len): (*const sockaddr, socklen_t)) -> Option<Address> {
    if !addr.is_null() {
        // SAFETY: as the C function.
        return unsafe { Address::of_program(addr, len) };
    }
    let connected = t.socket.outgoing().connected;
    connected.or_else(|| learn_peer(t))
}

#[cold]
fn learn_peer(t: Target<'_>) -> Option<Address> {
    let mut bytes = [0u8; size_of::<libc::sockaddr_in6>()];
    let mut len = bytes.len() as socklen_t;
    // SAFETY: a buffer of that length.
    let rc = unsafe { real::getpeername(t.fd, bytes.as_mut_ptr().cast(), &mut len) };
    let peer = (rc == 0).then(|| Address::new(&bytes[..(len as usize).min(bytes.len())]))?;
    t.socket.outgoing().connected = Some(peer);
    Some(peer)
}

/// `write`.
///
/// # Safety
/// As the C function.
#[inline]
pub unsafe fn write(t: Target<'_>, buf: *const c_void, len: usize) -> isize {
    let iov = &[message::single(buf, len)];
    let outbound = Outbound::plain(iov, 0, (std::ptr::null(), 0));
    // SAFETY: as the C function.
    unsafe { send(t, &outbound, || real::write(t.fd, buf, len)) }
}

/// `writev`.
///
/// # Safety
/// As the C function.
pub unsafe fn writev(t: Target<'_>, iov: *const iovec, count: c_int) -> isize {
    // SAFETY: as the C function.
    let kernel = || unsafe { real::writev(t.fd, iov, count) };
    let Some(iov) = elements(iov, count) else { return kernel() };
    let outbound = Outbound::plain(iov, 0, (std::ptr::null(), 0));
    // SAFETY: as the C function.
    unsafe { send(t, &outbound, kernel) }
}

/// `send` and `sendto`.
///
/// # Safety
/// As the C function.
#[inline]
pub unsafe fn sendto(
    t: Target<'_>,
    buf: *const c_void,
    len: usize,
    flags: c_int,
    to: (*const sockaddr, socklen_t),
) -> isize {
    let iov = &[message::single(buf, len)];
    // SAFETY: as the C function.
    unsafe { send(t, &Outbound::plain(iov, flags, to), || real::sendto(t.fd, buf, len, flags, to.0, to.1)) }
}

/// What the control messages of a header ask for.
fn control(header: &msghdr) -> Control {
    let mut bytes = [0u8; MOST_CONTROL];
    let Some(bytes) = bytes.get_mut(..header.msg_controllen) else { return Control::Other(None) };
    let from = header.msg_control.cast::<u8>().cast_const();
    if access::readable(from, bytes.len()) < bytes.len() {
        return Control::Other(None);
    }
    // SAFETY: readable; any bytes are bytes.
    unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
    Control::of_program(bytes)
}

/// `sendmsg`.
///
/// # Safety
/// As the C function.
pub unsafe fn sendmsg(t: Target<'_>, msg: *const msghdr, flags: c_int) -> isize {
    // SAFETY: passed on.
    let kernel = || unsafe { real::sendmsg(t.fd, msg, flags) };
    // SAFETY: any bytes are a header.
    let Some(header) = (unsafe { access::read(msg) }) else { return kernel() };
    let Some(iov) = vector(&header) else { return kernel() };
    let to = if header.msg_namelen == 0 { std::ptr::null() } else { header.msg_name.cast_const().cast() };
    let messages = (header.msg_control, header.msg_controllen);
    let outbound = Outbound { iov, flags, to: (to, header.msg_namelen), control: control(&header), messages };
    // SAFETY: as the C function.
    unsafe { send(t, &outbound, kernel) }
}

/// `sendmmsg`.
///
/// # Safety
/// As the C function.
pub unsafe fn sendmmsg(t: Target<'_>, msgs: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    let count = count.min(message::MAX_VECTOR as c_uint);
    for i in 0..count {
        let msg = msgs.wrapping_add(i as usize);
        // SAFETY: as the C function; a bad header is the kernel's to judge.
        let sent = unsafe { sendmsg(t, &raw const (*msg).msg_hdr, flags) };
        // SAFETY: as the C function.
        if sent < 0 || !unsafe { access::write(&raw mut (*msg).msg_len, sent as c_uint) } {
            // The kernel reports an error only if it has sent nothing.
            return if i > 0 { i as c_int } else { -1 };
        }
    }
    count as c_int
}
