//! The vfio-user server: attaches the functions of a fabric to QEMU.
//!
//! One thread for each function serves one client after the other; one does work when it is due; one serves the control
//! socket, and one each of its clients. All of them share the fabric behind one lock, so guests' memory is only used,
//! mapped and unmapped under it. QEMU is trusted; the guest is not, and it reaches only the [`Fabric`].

mod memory;

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time;

use netacc_device::Instant;
use parking_lot::{Condvar, Mutex};
use vfio_bindings::bindings::vfio::{
    vfio_region_info, VFIO_IRQ_INFO_EVENTFD, VFIO_IRQ_INFO_NORESIZE, VFIO_IRQ_SET_DATA_EVENTFD,
    VFIO_PCI_CONFIG_REGION_INDEX, VFIO_PCI_MSIX_IRQ_INDEX, VFIO_PCI_NUM_IRQS, VFIO_PCI_NUM_REGIONS,
    VFIO_REGION_INFO_FLAG_READ, VFIO_REGION_INFO_FLAG_WRITE,
};
use vfio_user::{DmaMapFlags, DmaUnmapFlags, IrqInfo, Server, ServerBackend, ServerRegion};

use crate::control;
use crate::fabric::Fabric;
use crate::pci::{ConfigSpace, BAR2_BYTES, CONFIG_BYTES, VECTORS};
use crate::registers::BAR0_BYTES;
use crate::settings::Driver;
use memory::GuestHost;

/// Bytes of a line on the control socket. Arbitrary: many times the longest request.
const MAX_LINE: u64 = 64 << 10;

/// A function to serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionSocket {
    /// The address to which QEMU connects.
    pub path: PathBuf,
    /// Address of the Ethernet device that the guest's driver pairs it with.
    pub mac: [u8; 6],
}

/// A socket that could not be bound.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {source}", path = .path.display())]
pub struct BindError {
    path: PathBuf,
    source: io::Error,
}

/// The fabric and its clock.
struct Shared {
    fabric: Mutex<Fabric<GuestHost>>,
    /// Work is due earlier than the timer thread expects.
    due: Condvar,
    started: time::Instant,
}

impl Shared {
    fn now(&self) -> Instant {
        Instant::from_nanos(u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Passes an input to the fabric, and does the work that follows from it at once.
    fn with<T>(&self, input: impl FnOnce(&mut Fabric<GuestHost>, Instant) -> T) -> T {
        let mut fabric = self.fabric.lock();
        let now = self.now();
        let result = input(&mut fabric, now);
        fabric.run(now);
        if fabric.next_deadline().is_some() {
            self.due.notify_one();
        }
        result
    }

    /// Does work when it is due, for ever.
    fn keep_time(&self) {
        let mut fabric = self.fabric.lock();
        loop {
            let now = self.now();
            fabric.run(now);
            match fabric.next_deadline() {
                None => self.due.wait(&mut fabric),
                // Others first: there may be ever more work.
                Some(due) if due <= self.now() => parking_lot::MutexGuard::bump(&mut fabric),
                Some(due) => {
                    self.due.wait_for(&mut fabric, due.saturating_since(now));
                }
            }
        }
    }
}

/// Sockets that are bound and served; they are removed in the end.
pub struct Sockets {
    paths: Vec<PathBuf>,
}

impl Drop for Sockets {
    fn drop(&mut self) {
        for path in &self.paths {
            // It may be gone already; other errors cannot be handled here.
            let _ = fs::remove_file(path);
        }
    }
}

/// Binds all sockets, and serves them on threads of their own until the process ends.
///
/// # Errors
/// Fails if one cannot be bound; the others are removed again.
pub fn serve(functions: &[FunctionSocket], driver: Driver, control: Option<&Path>) -> Result<Sockets, BindError> {
    let mut sockets = Sockets { paths: Vec::new() };
    let mut bind = |path: &Path| {
        let listener = bind(path).map_err(|source| BindError { path: path.to_owned(), source })?;
        sockets.paths.push(path.to_owned());
        Ok(listener)
    };
    let mut fabric = Fabric::default();
    let mut listeners = Vec::new();
    for function in functions {
        listeners.push((fabric.add(GuestHost::default(), function.mac, driver), bind(&function.path)?));
    }
    let control = control.map(bind).transpose()?;
    let shared = Arc::new(Shared { fabric: Mutex::new(fabric), due: Condvar::new(), started: time::Instant::now() });
    for (function, listener) in listeners {
        let shared = Arc::clone(&shared);
        thread::spawn(move || serve_function(&shared, function, listener.into()));
    }
    if let Some(listener) = control {
        let shared = Arc::clone(&shared);
        thread::spawn(move || serve_control(&shared, &listener));
    }
    thread::spawn(move || shared.keep_time());
    Ok(sockets)
}

/// Binds a socket, also if a dead process has left one at its path.
fn bind(path: &Path) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && UnixStream::connect(path).is_err() => {
            fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        result => result,
    }
}

fn serve_function(shared: &Shared, function: usize, listener: OwnedFd) {
    let server = Server::from_owned_fd(listener, true, interrupts(), regions());
    loop {
        let mut backend = Backend { shared, function, config: ConfigSpace::new() };
        // The crate panics if a client's first message is malformed; that client is gone then, and the next one is
        // served.
        match catch_unwind(AssertUnwindSafe(|| server.run(&mut backend))) {
            Ok(Ok(())) | Err(_) => {}
            Ok(Err(error)) => eprintln!("function {function}: {error}"),
        }
        shared.with(|fabric, _| {
            fabric.reset(function);
            *fabric.host_mut(function) = GuestHost::default();
        });
    }
}

fn regions() -> Vec<ServerRegion> {
    let bytes = |index| match index {
        0 => BAR0_BYTES,
        2 => BAR2_BYTES,
        VFIO_PCI_CONFIG_REGION_INDEX => CONFIG_BYTES,
        _ => 0,
    };
    let region = |index| {
        let size = bytes(index);
        let flags = if size > 0 { VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE } else { 0 };
        let argsz = size_of::<vfio_region_info>() as u32;
        let region_info = vfio_region_info { argsz, index, size, flags, ..Default::default() };
        ServerRegion { region_info, sparse_areas: Vec::new(), mmap_fd: None }
    };
    (0..VFIO_PCI_NUM_REGIONS).map(region).collect()
}

fn interrupts() -> Vec<IrqInfo> {
    let count = |index| if index == VFIO_PCI_MSIX_IRQ_INDEX { u32::from(VECTORS) } else { 0 };
    let flags = VFIO_IRQ_INFO_EVENTFD | VFIO_IRQ_INFO_NORESIZE;
    (0..VFIO_PCI_NUM_IRQS).map(|index| IrqInfo { index, flags, count: count(index) }).collect()
}

/// One client of one function.
struct Backend<'a> {
    shared: &'a Shared,
    function: usize,
    config: ConfigSpace,
}

impl ServerBackend for Backend<'_> {
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> io::Result<()> {
        match region {
            0 => self.shared.fabric.lock().read(self.function, offset, data),
            VFIO_PCI_CONFIG_REGION_INDEX => self.config.read(offset, data),
            _ => data.fill(0),
        }
        Ok(())
    }

    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> io::Result<()> {
        match region {
            0 => self.shared.with(|fabric, _| fabric.write(self.function, offset, data)),
            VFIO_PCI_CONFIG_REGION_INDEX => self.config.write(offset, data),
            _ => {}
        }
        Ok(())
    }

    fn dma_map(
        &mut self,
        flags: DmaMapFlags,
        offset: u64,
        address: u64,
        size: u64,
        file: Option<fs::File>,
    ) -> io::Result<()> {
        // Without a file it is not memory that can be shared: a ROM, or another device's registers.
        let Some(file) = file else { return Ok(()) };
        let writable = flags.contains(DmaMapFlags::WRITE);
        self.shared.fabric.lock().host_mut(self.function).map(&file, offset, address, size, writable)
    }

    fn dma_unmap(&mut self, _flags: DmaUnmapFlags, address: u64, size: u64) -> io::Result<()> {
        self.shared.fabric.lock().host_mut(self.function).unmap(address, size);
        Ok(())
    }

    fn reset(&mut self) -> io::Result<()> {
        self.config = ConfigSpace::new();
        self.shared.with(|fabric, _| fabric.reset(self.function));
        Ok(())
    }

    fn set_irqs(&mut self, index: u32, flags: u32, start: u32, count: u32, files: Vec<fs::File>) -> io::Result<()> {
        if index != VFIO_PCI_MSIX_IRQ_INDEX {
            return Ok(());
        }
        let mut fabric = self.shared.fabric.lock();
        let host = fabric.host_mut(self.function);
        if count == 0 {
            host.clear_vectors();
        } else if flags & VFIO_IRQ_SET_DATA_EVENTFD != 0 {
            let last = start.checked_add(count).filter(|end| *end <= u32::from(VECTORS));
            let range = last.map(|end| start..end).ok_or(io::ErrorKind::InvalidInput)?;
            host.set_vectors(range, files);
        }
        Ok(())
    }
}

fn serve_control(shared: &Arc<Shared>, listener: &UnixListener) {
    for client in listener.incoming() {
        match client {
            Ok(client) => {
                let shared = Arc::clone(shared);
                thread::spawn(move || serve_control_client(&shared, client));
            }
            Err(error) => eprintln!("control: {error}"),
        }
    }
}

/// Answers lines until the client goes, or sends one without an end.
fn serve_control_client(shared: &Shared, mut client: UnixStream) {
    let Ok(reader) = client.try_clone() else { return };
    let mut reader = BufReader::new(reader);
    loop {
        let mut line = String::new();
        match reader.by_ref().take(MAX_LINE).read_line(&mut line) {
            Ok(len) if len > 0 && line.ends_with('\n') => {}
            _ => return,
        }
        let mut answer = shared.with(|fabric, now| control::handle_line(fabric, now, &line));
        answer.push('\n');
        if client.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}
