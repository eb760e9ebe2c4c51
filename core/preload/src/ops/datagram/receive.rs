//! Calls that receive: the next datagram is in a ring, or in the kernel's socket.

use std::ffi::{c_int, c_uint, c_void};

use libc::{iovec, mmsghdr, msghdr, sockaddr, socklen_t, timespec};

use super::{count, elements, vector, Target};
use crate::control::flows;
use crate::datagram::{add_dropped, joined, wants, Address, Incoming, Messages, Taken, KERNEL_LOOKS, MOST_CONTROL};
use crate::ops::{announcing, message, readiness};
use crate::os::asleep::Asleep;
use crate::os::clock::{now, wall_nanos};
use crate::os::errno::{errno, fail};
use crate::os::{access, deferral, poll, real, sockopt};
use crate::runtime::{self, Runtime};
use crate::spin::Waiting;

/// Flags of `recv` that only the kernel's socket can serve.
const ASIDE: c_int = libc::MSG_ERRQUEUE | libc::MSG_OOB;

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
        if waits && (rt.spin.sleeps_at_once() || socket.stands_in_senders_way()) {
            // SAFETY: passed on.
            if let Some(received) = unsafe { self.asleep(rt) } {
                return received;
            }
        }
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
                if self.spin(begun) {
                    waiting.take().expect("begun above").end(socket.take_received());
                    continue;
                }
            }
            let Some(_asleep) = socket.sleep(fd) else { continue };
            // SAFETY: passed on.
            let received = unsafe { self.kernel(self.flags) };
            if let Some(waiting) = waiting {
                waiting.end(socket.take_received());
            }
            return received;
        }
    }

    /// Spins until there may be a datagram (true), unless that is not worth it.
    fn spin(&self, waiting: &mut Waiting<'_>) -> bool {
        let Target { socket, fd } = self.target;
        if socket.stands_in_senders_way() {
            waiting.sleep();
            return false;
        }
        let mut looks = 0;
        waiting.spin(None, || {
            looks += 1;
            socket.may_be_ready() || looks % KERNEL_LOOKS == 0 && poll::ready_events(fd, libc::POLLIN) != 0
        })
    }

    /// Receives in the kernel, without a look there before: the rings are empty when a receiver falls asleep, so what the kernel
    /// has is the next datagram. This is one call where a look, a wait and a sleep are three. `None`: a ring has something.
    ///
    /// # Safety
    /// As [`run`](Receive::run).
    unsafe fn asleep(&self, rt: &Runtime) -> Option<Result<(usize, Envelope), Nothing>> {
        let Target { socket, fd } = self.target;
        if !socket.incoming().begins_quietly() || !socket.blocks(|| !is_nonblocking(fd)) {
            return None;
        }
        let _asleep = socket.sleep(fd)?;
        let mut waiting = rt.spin.begin(now());
        waiting.sleep();
        // SAFETY: passed on.
        let received = unsafe { self.kernel(self.flags) };
        if matches!(received, Err(Nothing::Yet)) {
            socket.ask_again_whether_it_blocks();
        }
        waiting.end(socket.take_received());
        Some(received)
    }

    /// Takes what there is, in order. errno is EAGAIN if there is nothing.
    ///
    /// # Safety
    /// As [`run`](Receive::run).
    #[inline]
    unsafe fn attempt(&self) -> Result<(usize, Envelope), Nothing> {
        self.target.socket.poll_links();
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
                incoming.before_kernel();
                // The kernel's next datagram is before all that a ring has got by now.
                // SAFETY: passed on.
                return match unsafe { self.take_from_kernel(&mut incoming) } {
                    // SAFETY: passed on.
                    Err(Nothing::Yet) => unsafe { self.take_behind_kernel(&mut incoming) },
                    done => done,
                };
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
            // SAFETY: passed on.
            Err(Nothing::Yet) => unsafe { self.take_behind_kernel(incoming) },
            Err(Nothing::Failed) => Err(Nothing::Failed),
        }
    }

    /// Takes what is due now that the kernel was asked, and had nothing.
    ///
    /// # Safety
    /// As [`run`](Receive::run).
    unsafe fn take_behind_kernel(&self, incoming: &mut Incoming) -> Result<(usize, Envelope), Nothing> {
        incoming.kernel_was_empty();
        self.target.socket.update_linked(incoming);
        let read = incoming.take_read();
        if let Some(rt) = runtime::get().filter(|_| !read.is_empty()) {
            flows::end(rt, read);
        }
        if !self.target.socket.has_sleepers() {
            incoming.stay_awake();
        }
        let taken = incoming.take(self.peeks()).ok_or(Nothing::Yet)?;
        // SAFETY: passed on.
        unsafe { self.deliver(incoming, &taken) }
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
            socket.learn_sender(incoming.sender_processor(source));
            if incoming.came_by_kernel(source, datagrams) && socket.number().is_some() {
                announcing::offer(self.target.fd, source);
            }
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
