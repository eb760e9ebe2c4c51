//! Calls on datagram sockets: a datagram takes the ring of its flow where there is one whose receiver is awake, or else the
//! kernel. See [`datagram`](crate::datagram).
//!
//! The kernel's answer stands for everything that the rings do not serve: some control messages, unusual flags, bad
//! addresses.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use libc::{iovec, mmsghdr, msghdr, sockaddr, socklen_t, timespec};
use netacc_datagram::Marks;

use crate::datagram::{
    add_dropped, joined, wants, Address, Control, Datagram, Incoming, Messages, Outgoing, Taken, Way, KERNEL_LOOKS,
    MOST_CONTROL,
};
use crate::ops::{announcing, message, readiness};
use crate::os::asleep::{asleep, Asleep};
use crate::os::clock::{now, wall_nanos};
use crate::os::errno::{errno, fail};
use crate::os::{access, deferral, poll, real, sockopt};
use crate::runtime;

/// Flags of `send` that mean nothing for a ring.
const SEND_FLAGS: c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_CONFIRM;
/// Flags of `recv` that only the kernel's socket can serve.
const ASIDE: c_int = libc::MSG_ERRQUEUE | libc::MSG_OOB;
/// UDP's longest datagram over IPv4. The kernel refuses longer ones.
const LONGEST: usize = 65_507;

/// The longest datagram of a send of several, and how many there may be: the kernel may take more.
const LONGEST_SEGMENT: usize = 1472;
const MOST_SEGMENTS: usize = 64;

/// A socket, and the descriptor by which the program has reached it.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    /// The socket.
    pub socket: &'a Arc<Datagram>,
    /// The descriptor.
    pub fd: c_int,
}

/// What comes with a datagram.
#[derive(Default)]
struct Envelope {
    source: Option<Address>,
    flags: c_int,
    control_len: usize,
}

/// A call that receives.
struct Receive<'a> {
    target: Target<'a>,
    iov: &'a [iovec],
    control: (*mut c_void, usize),
    flags: c_int,
}

/// Why a receive has no datagram.
enum Nothing {
    /// There is none now.
    Yet,
    /// The call has failed, and errno is set.
    Failed,
}

impl Receive<'_> {
    fn peeks(&self) -> bool {
        self.flags & libc::MSG_PEEK != 0
    }

    /// Receives, as the kernel would: waits unless the socket or the call does not wait.
    ///
    /// # Safety
    /// The memory that `iov` describes is the caller's to write.
    unsafe fn run(&self) -> Result<(usize, Envelope), Nothing> {
        let Target { socket, fd } = self.target;
        let rt = runtime::get().filter(|_| socket.is_linked() && self.flags & ASIDE == 0);
        let Some(rt) = rt else {
            // SAFETY: passed on.
            return unsafe { self.kernel(self.flags) };
        };
        let waits = self.flags & libc::MSG_DONTWAIT == 0;
        let mut waiting = None;
        loop {
            // SAFETY: passed on.
            match unsafe { self.attempt() } {
                Err(Nothing::Yet) => {}
                done => return done,
            }
            if !waits || is_nonblocking(fd) {
                return Err(Nothing::Failed);
            }
            if waiting.is_none() {
                let begun = waiting.insert(rt.spin.begin(now()));
                let mut looks = 0;
                let found = begun.spin(None, || {
                    looks += 1;
                    socket.may_be_ready() || looks % KERNEL_LOOKS == 0 && poll::ready_events(fd, libc::POLLIN) != 0
                });
                if found {
                    waiting.take().expect("begun above").end(1);
                    continue;
                }
            }
            let Some(_asleep) = socket.sleep(fd) else { continue };
            // SAFETY: passed on.
            let received = unsafe { self.kernel(self.flags) };
            if let Some(waiting) = waiting {
                waiting.end(1);
            }
            return received;
        }
    }

    /// Takes what there is, in order. errno is EAGAIN if there is nothing.
    ///
    /// # Safety
    /// As [`run`](Receive::run).
    #[inline]
    unsafe fn attempt(&self) -> Result<(usize, Envelope), Nothing> {
        let mut incoming = self.target.socket.incoming();
        if !self.target.socket.has_sleepers() {
            incoming.stay_awake();
        }
        if !incoming.is_kernels_turn() {
            // Read before the rings are looked at.
            let expects = incoming.expects_by_kernel();
            if let Some(taken) = incoming.take(self.peeks()) {
                // SAFETY: passed on.
                return unsafe { self.deliver(&mut incoming, &taken) };
            }
            if expects {
                // The kernel's next datagram is before all that a ring has got by now.
                // SAFETY: passed on.
                match unsafe { self.take_from_kernel(&mut incoming) } {
                    Err(Nothing::Yet) => {}
                    done => return done,
                }
            }
        }
        // SAFETY: passed on.
        unsafe { self.attempt_kernel(&mut incoming) }
    }

    /// # Safety
    /// As [`run`](Receive::run).
    unsafe fn attempt_kernel(&self, incoming: &mut Incoming) -> Result<(usize, Envelope), Nothing> {
        incoming.before_kernel();
        let look = Receive { iov: &[], control: (std::ptr::null_mut(), 0), flags: libc::MSG_PEEK, ..*self };
        // SAFETY: no memory of the caller's.
        match unsafe { look.call(libc::MSG_PEEK | libc::MSG_DONTWAIT) } {
            Ok((_, envelope)) => {
                let earlier = envelope.source.and_then(|source| incoming.take_before(&source, self.peeks()));
                if let Some(taken) = earlier {
                    // SAFETY: passed on.
                    return unsafe { self.deliver(incoming, &taken) };
                }
                // SAFETY: passed on.
                unsafe { self.take_from_kernel(incoming) }
            }
            Err(Nothing::Yet) => {
                incoming.kernel_was_empty();
                self.target.socket.update_linked(incoming);
                if !self.target.socket.has_sleepers() {
                    incoming.stay_awake();
                }
                let taken = incoming.take(self.peeks()).ok_or(Nothing::Yet)?;
                // SAFETY: passed on.
                unsafe { self.deliver(incoming, &taken) }
            }
            Err(Nothing::Failed) => Err(Nothing::Failed),
        }
    }

    /// Takes a datagram from the kernel, if it has one now.
    ///
    /// # Safety
    /// As [`run`](Receive::run).
    unsafe fn take_from_kernel(&self, incoming: &mut Incoming) -> Result<(usize, Envelope), Nothing> {
        // SAFETY: passed on.
        let (n, mut envelope) = unsafe { self.call(self.flags | libc::MSG_DONTWAIT) }?;
        self.note(incoming, n, &mut envelope);
        if !self.peeks() {
            incoming.begin_new_sometimes(self.target.fd);
            incoming.account_drops(self.target.fd);
        }
        Ok((n, envelope))
    }

    /// Copies a datagram to the caller.
    ///
    /// # Safety
    /// As [`run`](Receive::run).
    #[inline]
    unsafe fn deliver(&self, incoming: &mut Incoming, taken: &Taken) -> Result<(usize, Envelope), Nothing> {
        let (len, mut done) = (taken.bytes(), 0);
        let mut whole = true;
        for v in self.iov {
            let wanted = v.iov_len.min(len - done);
            if wanted == 0 {
                continue;
            }
            let to = v.iov_base.cast::<u8>();
            // SAFETY: the caller's promise.
            let reached = unsafe { access::writable(to, wanted) };
            whole &= reached == wanted;
            // SAFETY: found to be writable.
            unsafe { incoming.copy(taken, done, to, reached) };
            done += reached;
            if !whole {
                break;
            }
        }
        let mut flags = if done < len { libc::MSG_TRUNC } else { 0 };
        let control_len = match self.target.socket.gives_messages() {
            // SAFETY: passed on.
            true => unsafe { self.inform(incoming, taken, &mut flags) },
            false => 0,
        };
        let envelope = Envelope { source: Some(incoming.origin_of(taken).source), flags, control_len };
        if !self.peeks() {
            incoming.finish(taken);
            count(&self.target.socket.counts().rx_link, 1);
        }
        if !whole {
            // As the kernel does, the datagram is lost.
            fail(libc::EFAULT);
            return Err(Nothing::Failed);
        }
        Ok((if self.flags & libc::MSG_TRUNC != 0 { len } else { done }, envelope))
    }

    /// Gives the caller control messages, and sets a flag if there is no room for them. Returns their length.
    ///
    /// # Safety
    /// As [`run`](Receive::run), also for the buffer of control messages.
    unsafe fn inform(&self, incoming: &mut Incoming, taken: &Taken, flags: &mut c_int) -> usize {
        let Target { socket, fd } = self.target;
        let dropped = socket.wants(wants::DROPS).then(|| incoming.count_dropped(fd));
        let values = incoming.values(taken, wall_nanos, dropped);
        let Some(known) = &incoming.origin_of(taken).messages else { return 0 };
        let mut messages = [0u8; MOST_CONTROL];
        let (to, room) = self.control;
        let room = if to.is_null() { 0 } else { room.min(MOST_CONTROL) };
        let (len, is_cut) = known.write(&values, &mut messages[..room]);
        // SAFETY: the caller's promise; as many bytes as are found to be writable.
        let reached = unsafe { access::writable(to.cast::<u8>(), len) };
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(messages.as_ptr(), to.cast(), reached) };
        let whole = reached == len;
        if is_cut || !whole {
            *flags |= libc::MSG_CTRUNC;
        }
        // The kernel does not count what it could not write.
        reached * usize::from(whole)
    }

    /// The kernel's control messages of a datagram, if it had room for them all.
    fn messages<'a>(&self, envelope: &Envelope, copy: &'a mut [u8; MOST_CONTROL]) -> Option<&'a mut [u8]> {
        let (from, room) = self.control;
        if from.is_null() || envelope.flags & libc::MSG_CTRUNC != 0 {
            return None;
        }
        let bytes = copy.get_mut(..room.min(MOST_CONTROL)).filter(|bytes| envelope.control_len <= bytes.len())?;
        let from = from.cast::<u8>().cast_const();
        let there = access::readable(from, bytes.len());
        // SAFETY: found to be readable.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), there) };
        Some(bytes).filter(|bytes| bytes.len() == there)
    }

    /// Receives from the kernel, and notes from whom.
    ///
    /// # Safety
    /// As [`run`](Receive::run).
    unsafe fn kernel(&self, flags: c_int) -> Result<(usize, Envelope), Nothing> {
        // SAFETY: passed on.
        let mut received = unsafe { self.call(flags) };
        if let (Ok((n, envelope)), 0) = (&mut received, flags & ASIDE) {
            let Target { socket, fd } = self.target;
            match socket.is_kernel_only() && !socket.is_linked() {
                true => count(&socket.counts().rx_kernel, 1),
                false => self.note(&mut socket.incoming(), *n, envelope),
            }
            if socket.count_kernel_call() {
                announcing::announce(socket, fd);
            }
        }
        received
    }

    /// A datagram of `n` bytes came by the kernel, or several that it has joined.
    fn note(&self, incoming: &mut Incoming, n: usize, envelope: &mut Envelope) {
        let socket = self.target.socket;
        let mut copy = [0u8; MOST_CONTROL];
        let mut messages = match socket.gives_messages() || socket.joins() {
            true => self.messages(envelope, &mut copy),
            false => None,
        };
        let said = messages.as_deref().map(|messages| &messages[..envelope.control_len]);
        //= spec §10.2.5
        //# A receiver for which the kernel joins datagrams (`UDP_GRO`) counts each of them.
        let datagrams = match (socket.joins(), said) {
            (false, _) => 1,
            (true, Some(said)) if envelope.flags & libc::MSG_TRUNC == 0 => joined(said, n).unwrap_or(1),
            (true, _) => 0,
        };
        // A receive that was ended by `shutdown` has no source.
        if let Some(source) = envelope.source.as_ref().filter(|_| !self.peeks()) {
            count(&socket.counts().rx_kernel, datagrams.max(1));
            incoming.came_by_kernel(source, datagrams);
            // Just after an option was set, the kernel may not have the time yet.
            let known = said.filter(|_| socket.gives_messages()).and_then(Messages::of_kernel);
            if let Some(known) = known.filter(|known| !socket.wants(wants::TIMES) || known.have_times()) {
                incoming.learn(source, &known);
            }
        }
        let more = if socket.wants(wants::DROPS) { incoming.dropped_by_rings() } else { 0 };
        if let Some(messages) = messages.as_mut().filter(|_| more > 0) {
            envelope.control_len = add_dropped(messages, envelope.control_len, more);
            // SAFETY: the caller's buffer, to which the kernel has written; no longer than it is.
            unsafe { std::ptr::copy_nonoverlapping(messages.as_ptr(), self.control.0.cast(), envelope.control_len) };
        }
    }

    /// The kernel's `recvmsg`.
    ///
    /// # Safety
    /// As [`run`](Receive::run).
    unsafe fn call(&self, flags: c_int) -> Result<(usize, Envelope), Nothing> {
        let mut name = [0u8; size_of::<libc::sockaddr_in6>()];
        // SAFETY: all-zero is a valid header.
        let mut header: msghdr = unsafe { std::mem::zeroed() };
        header.msg_name = name.as_mut_ptr().cast();
        header.msg_namelen = name.len() as socklen_t;
        header.msg_iov = self.iov.as_ptr().cast_mut();
        header.msg_iovlen = self.iov.len();
        (header.msg_control, header.msg_controllen) = self.control;
        // SAFETY: the name is a buffer; the rest is the caller's.
        let mut receive = || unsafe { real::recvmsg(self.target.fd, &mut header, flags) };
        let n = if flags & libc::MSG_DONTWAIT != 0 { receive() } else { waiting(self.target.fd, receive) };
        let Ok(n) = usize::try_from(n) else {
            return Err(if errno() == libc::EAGAIN { Nothing::Yet } else { Nothing::Failed });
        };
        let len = (header.msg_namelen as usize).min(name.len());
        Ok((
            n,
            Envelope {
                source: (len > 0).then(|| Address::new(&name[..len])),
                flags: header.msg_flags,
                control_len: header.msg_controllen,
            },
        ))
    }
}

fn is_nonblocking(fd: c_int) -> bool {
    // SAFETY: no pointers with this command.
    unsafe { real::fcntl(fd, libc::F_GETFL, 0) & libc::O_NONBLOCK != 0 }
}

/// Makes a call that may wait for a datagram. A handler that has waited until now ends it, as one that runs while the
/// kernel waits does.
fn waiting(fd: c_int, receive: impl FnOnce() -> isize) -> isize {
    let asleep = Asleep::begin();
    if deferral::waits() && asleep.is_interrupted(sockopt::receive_timeout(fd).is_none()) {
        return fail(libc::EINTR);
    }
    receive()
}

/// Counts datagrams. The callers hold the socket's lock for that direction, or the kernel's datagrams are not many.
#[inline]
fn count(counter: &AtomicU64, datagrams: u64) {
    counter.fetch_add(datagrams, Ordering::Relaxed);
}

/// `recv`, `recvfrom` and `read`.
///
/// # Safety
/// As the C function.
pub unsafe fn recvfrom(t: Target<'_>, iov: &[iovec], flags: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> isize {
    // Messages that the program does not read are read for the rings' sake.
    let mut own = [0u8; MOST_CONTROL];
    let control: (*mut c_void, usize) = match t.socket.gives_messages() || t.socket.joins() {
        true => (own.as_mut_ptr().cast(), own.len()),
        false => (std::ptr::null_mut(), 0),
    };
    let call = Receive { target: t, iov, control, flags };
    // SAFETY: as the C function.
    let Ok((n, envelope)) = (unsafe { call.run() }) else { return -1 };
    if !addr.is_null() {
        // SAFETY: as the C function.
        if let Err(error) = unsafe { name_source(&envelope, addr, len) } {
            return fail(error);
        }
    }
    n as isize
}

/// Gives the program the sender's address.
///
/// # Safety
/// `addr` and `len` are the caller's to write, if they are there.
unsafe fn name_source(envelope: &Envelope, addr: *mut sockaddr, len: *mut socklen_t) -> Result<(), c_int> {
    let name = envelope.source.as_ref().map_or(&[][..], Address::bytes);
    // SAFETY: any bytes are a number.
    let room = unsafe { access::read(len) }.ok_or(libc::EFAULT)?;
    if (room as c_int) < 0 {
        return Err(libc::EINVAL);
    }
    let n = name.len().min(room as usize);
    // SAFETY: the caller's promise; as many bytes as are found to be writable.
    unsafe {
        if access::writable(addr.cast::<u8>(), n) < n {
            return Err(libc::EFAULT);
        }
        std::ptr::copy_nonoverlapping(name.as_ptr(), addr.cast::<u8>(), n);
        access::write(len, name.len() as socklen_t).then_some(()).ok_or(libc::EFAULT)
    }
}

/// `recvmsg`. `None`: the kernel judges the arguments.
///
/// # Safety
/// As the C function.
pub unsafe fn recvmsg(t: Target<'_>, msg: *mut msghdr, flags: c_int) -> Option<isize> {
    // SAFETY: any bytes are a header.
    let mut header = unsafe { access::read(msg) }?;
    let iov = vector(&header)?;
    if header.msg_namelen as c_int <= 0 && !header.msg_name.is_null() {
        return None;
    }
    let call = Receive { target: t, iov, control: (header.msg_control, header.msg_controllen), flags };
    // SAFETY: as the C function.
    let Ok((n, envelope)) = (unsafe { call.run() }) else { return Some(-1) };
    if !header.msg_name.is_null() {
        // SAFETY: as the C function.
        let named = unsafe { name_source(&envelope, header.msg_name.cast(), &raw mut header.msg_namelen) };
        if let Err(error) = named {
            return Some(fail(error));
        }
    }
    header.msg_controllen = envelope.control_len;
    header.msg_flags = envelope.flags | flags & libc::MSG_CMSG_CLOEXEC;
    // SAFETY: as the C function.
    Some(if unsafe { access::write(msg, header) } { n as isize } else { fail(libc::EFAULT) })
}

/// The vector of a header; `None` if the kernel must judge it.
fn vector<'a>(header: &msghdr) -> Option<&'a [iovec]> {
    if header.msg_iovlen == 0 {
        return Some(&[]);
    }
    let usable = header.msg_iovlen <= message::MAX_VECTOR && access::is_readable(header.msg_iov, header.msg_iovlen);
    // SAFETY: readable, and any bytes are elements.
    let iov = usable.then(|| unsafe { std::slice::from_raw_parts(header.msg_iov, header.msg_iovlen) })?;
    iov.iter().all(|v| v.iov_len <= isize::MAX as usize).then_some(iov)
}

/// `recvmmsg`: datagram by datagram. `None`: the kernel judges the arguments.
///
/// # Safety
/// As the C function.
pub unsafe fn recvmmsg(
    t: Target<'_>,
    msgs: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> Option<c_int> {
    let limit = readiness::time_limit(timeout).ok()?;
    let begun = now();
    let mut received = 0;
    let mut each = flags & !libc::MSG_WAITFORONE;
    while received < count.min(message::MAX_VECTOR as c_uint) {
        let msg = msgs.wrapping_add(received as usize);
        // SAFETY: as the C function; the kernel judges a bad header.
        let n = unsafe {
            let header = &raw mut (*msg).msg_hdr;
            recvmsg(t, header, each).unwrap_or_else(|| real::recvmsg(t.fd, header, each))
        };
        // SAFETY: as the C function.
        if n < 0 || !unsafe { access::write(&raw mut (*msg).msg_len, n as c_uint) } {
            break;
        }
        received += 1;
        if flags & libc::MSG_WAITFORONE != 0 {
            each |= libc::MSG_DONTWAIT;
        }
        if limit.is_some_and(|limit| now().saturating_since(begun) >= limit) {
            break;
        }
    }
    if let Some(limit) = limit {
        let left = limit.saturating_sub(now().saturating_since(begun));
        let left = timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos().into() };
        // SAFETY: as the C function. The kernel does not mind either.
        let _ = unsafe { access::write(timeout, left) };
    }
    Some(if received > 0 { received as c_int } else { -1 })
}

/// A datagram that the program sends.
pub struct Outbound<'a> {
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
pub unsafe fn send(t: Target<'_>, outbound: &Outbound<'_>, kernel: impl FnOnce() -> isize) -> isize {
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
    drop(outgoing);
    let Some((way, datagrams)) = placed.rest else { return placed.done as isize };
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

/// `read`.
///
/// # Safety
/// As the C function.
#[inline]
pub unsafe fn read(t: Target<'_>, buf: *mut c_void, len: usize) -> isize {
    if len == 0 {
        // A read of nothing does not wait. SAFETY: as the C function.
        return unsafe { real::read(t.fd, buf, len) };
    }
    // SAFETY: as the C function.
    unsafe { recvfrom(t, &[message::single(buf, len)], 0, std::ptr::null_mut(), std::ptr::null_mut()) }
}

/// `readv`.
///
/// # Safety
/// As the C function.
pub unsafe fn readv(t: Target<'_>, iov: *const iovec, count: c_int) -> isize {
    match elements(iov, count) {
        // SAFETY: as the C function.
        Some(iov) => unsafe { recvfrom(t, iov, 0, std::ptr::null_mut(), std::ptr::null_mut()) },
        // SAFETY: as the C function.
        None => unsafe { real::readv(t.fd, iov, count) },
    }
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

/// The vector of a call that moves something; `None`: the kernel judges it.
fn elements<'a>(iov: *const iovec, count: c_int) -> Option<&'a [iovec]> {
    let count = usize::try_from(count).ok().filter(|count| (1..=message::MAX_VECTOR).contains(count))?;
    // SAFETY: readable, and any bytes are elements.
    let iov = access::is_readable(iov, count).then(|| unsafe { std::slice::from_raw_parts(iov, count) })?;
    let usable = iov.iter().all(|v| v.iov_len <= isize::MAX as usize) && iov.iter().any(|v| v.iov_len > 0);
    usable.then_some(iov)
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
