//! Work requests, as the provider writes them.
//!
//! Layouts: erdma_hw.h, `ERDMA_SQE_HDR_*`, `struct erdma_write_sqe`, `erdma_send_sqe`, `erdma_readreq_sqe`, `erdma_atomic_sqe`,
//! `erdma_reg_mr_sqe`, `erdma_rqe`; numbers: `enum erdma_opcode`. A request has one to four blocks of 32 bytes, and wraps with
//! the queue.

use crate::bits::{bits, u32_at, u64_at};
use crate::pages::{Pages, MIN_SHIFT};
use crate::region::Rights;

/// Blocks of the longest request (`ERDMA_MAX_WQEBB_PER_SQE`).
pub(crate) const MAX_BLOCKS: u16 = 4;

/// Bytes of the longest request.
pub(crate) const MAX_BYTES: usize = 128;

/// Pieces that a request may gather (erdma_verbs.h: `ERDMA_MAX_SEND_SGE`).
const MAX_SEGMENTS: usize = 6;

/// Bytes within a request (erdma_verbs.h: `ERDMA_MAX_INLINE`).
const MAX_INLINE: usize = 96;

/// The place of the pieces in a SEND, and in all other requests.
const SEND_BODY: usize = 16;
const BODY: usize = 32;

/// Pages in a request that maps a region (`ERDMA_MAX_INLINE_MTT_ENTRIES`).
const MAX_INLINE_PAGES: u32 = 4;

/// Numbers of operations in requests and completions.
pub(crate) mod opcode {
    pub(crate) const WRITE: u8 = 0;
    pub(crate) const READ: u8 = 1;
    pub(crate) const SEND: u8 = 2;
    pub(crate) const SEND_WITH_IMM: u8 = 3;
    pub(crate) const RECEIVE: u8 = 4;
    pub(crate) const RECEIVE_WRITE_IMM: u8 = 5;
    pub(crate) const RECEIVE_INVALIDATE: u8 = 6;
    pub(crate) const WRITE_WITH_IMM: u8 = 9;
    pub(crate) const RECEIVE_SEND_IMM: u8 = 12;
    pub(crate) const SEND_WITH_INVALIDATE: u8 = 13;
    pub(crate) const MAP_REGION: u8 = 14;
    pub(crate) const LOCAL_INVALIDATE: u8 = 15;
    pub(crate) const READ_WITH_INVALIDATE: u8 = 16;
    pub(crate) const COMPARE_SWAP: u8 = 17;
    pub(crate) const FETCH_ADD: u8 = 18;
}

/// The first double word of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header(u64);

impl Header {
    pub(crate) fn new(bytes: &[u8]) -> Header {
        Header(u64_at(bytes, 0))
    }

    pub(crate) fn blocks(self) -> u16 {
        bits(self.0, 54, 52) as u16 + 1
    }

    pub(crate) fn opcode(self) -> u8 {
        bits(self.0, 31, 27) as u8
    }

    pub(crate) fn signaled(self) -> bool {
        bits(self.0, 22, 22) == 1
    }

    pub(crate) fn solicited(self) -> bool {
        bits(self.0, 23, 23) == 1
    }

    /// It waits for all requests before it.
    pub(crate) fn fenced(self) -> bool {
        bits(self.0, 24, 24) == 1
    }

    fn inline(self) -> bool {
        bits(self.0, 25, 25) == 1
    }

    fn qpn(self) -> u32 {
        bits(self.0, 51, 32) as u32
    }

    /// Pieces, or bytes inline.
    fn count(self) -> usize {
        bits(self.0, 63, 56) as usize
    }
}

/// A piece of local memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) address: u64,
    pub(crate) len: u32,
    pub(crate) key: u32,
}

impl Segment {
    fn at(bytes: &[u8], at: usize) -> Segment {
        Segment { address: u64_at(bytes, at), len: u32_at(bytes, at + 8), key: u32_at(bytes, at + 12) }
    }
}

/// The source of a request's data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Inline(Vec<u8>),
    Segments(Vec<Segment>),
}

/// The operation of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Write { source: Source, address: u64, key: u32, imm: Option<[u8; 4]> },
    Send { source: Source, extra: SendExtra },
    Read { local: Segment, address: u64, key: u32, invalidate: bool },
    Atomic { local: Segment, address: u64, key: u32, change: AtomicChange },
    MapRegion(MapRegion),
    LocalInvalidate { key: u32 },
}

/// The part of a SEND beside its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendExtra {
    /// Nothing.
    Nothing,
    /// An immediate, as its four bytes are in a completion.
    Imm([u8; 4]),
    /// The key of a region that the receiver shall not use any more.
    Invalidate(u32),
}

/// An atomic operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicChange {
    /// Stores `swap` over `compare`.
    CompareSwap {
        /// The value to replace.
        compare: u64,
        /// The value to store.
        swap: u64,
    },
    /// Adds, modulo 2^64.
    FetchAdd(u64),
}

impl AtomicChange {
    /// The new value.
    pub(crate) fn apply(self, old: u64) -> u64 {
        match self {
            AtomicChange::CompareSwap { compare, swap } if old == compare => swap,
            AtomicChange::CompareSwap { .. } => old,
            AtomicChange::FetchAdd(add) => old.wrapping_add(add),
        }
    }
}

/// The kernel maps a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MapRegion {
    pub(crate) key: u32,
    pub(crate) start: u64,
    pub(crate) len: u32,
    pub(crate) rights: Rights,
    pub(crate) shift: u32,
    pub(crate) pages: MapPages,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MapPages {
    Inline(Pages),
    /// That many, in the region's table.
    Table(u32),
}

/// A request that no driver writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// Decodes a request: `bytes` has all its blocks.
pub(crate) fn decode(bytes: &[u8], qpn: u32, atomics: bool) -> Result<Work, Malformed> {
    let header = Header::new(bytes);
    if header.qpn() != qpn {
        return Err(Malformed);
    }
    let remote = |at: usize| u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32;
    // The bytes of an immediate are big-endian in a request, little-endian in a completion (erdma_cq.c).
    let imm = u32_at(bytes, 8).to_be_bytes();
    let need = |len: usize| if bytes.len() >= len { Ok(()) } else { Err(Malformed) };
    Ok(match header.opcode() {
        code @ (opcode::WRITE | opcode::WRITE_WITH_IMM) => Work::Write {
            source: source(bytes, header, BODY)?,
            address: remote(20),
            key: u32_at(bytes, 16),
            imm: (code == opcode::WRITE_WITH_IMM).then_some(imm),
        },
        opcode::SEND => Work::Send { source: source(bytes, header, SEND_BODY)?, extra: SendExtra::Nothing },
        opcode::SEND_WITH_IMM => Work::Send { source: source(bytes, header, SEND_BODY)?, extra: SendExtra::Imm(imm) },
        opcode::SEND_WITH_INVALIDATE => {
            Work::Send { source: source(bytes, header, SEND_BODY)?, extra: SendExtra::Invalidate(u32_at(bytes, 8)) }
        }
        code @ (opcode::READ | opcode::READ_WITH_INVALIDATE) => {
            need(BODY + 16)?;
            let Segment { address, key, .. } = Segment::at(bytes, BODY);
            let local = Segment { address: remote(20), len: u32_at(bytes, 12), key: u32_at(bytes, 16) };
            let invalidate = code == opcode::READ_WITH_INVALIDATE;
            // It names the key to invalidate, which is that of the memory it reads into.
            if invalidate && u32_at(bytes, 8) != local.key {
                return Err(Malformed);
            }
            Work::Read { local, address, key, invalidate }
        }
        code @ (opcode::COMPARE_SWAP | opcode::FETCH_ADD) if atomics => {
            need(BODY + 32)?;
            let (far, local) = (Segment::at(bytes, BODY), Segment::at(bytes, BODY + 16));
            if local.len != 8 {
                return Err(Malformed);
            }
            let operand = u64_at(bytes, 16);
            let change = match code {
                opcode::COMPARE_SWAP => AtomicChange::CompareSwap { compare: u64_at(bytes, 24), swap: operand },
                _ => AtomicChange::FetchAdd(operand),
            };
            Work::Atomic { local, address: far.address, key: far.key, change }
        }
        opcode::MAP_REGION => Work::MapRegion(map_region(bytes)?),
        opcode::LOCAL_INVALIDATE => Work::LocalInvalidate { key: u32_at(bytes, 20) },
        _ => return Err(Malformed),
    })
}

fn source(bytes: &[u8], header: Header, body: usize) -> Result<Source, Malformed> {
    let count = header.count();
    if header.inline() {
        let data = bytes.get(body..body + count).filter(|_| count <= MAX_INLINE);
        return data.map(|data| Source::Inline(data.to_vec())).ok_or(Malformed);
    }
    if count > MAX_SEGMENTS || body + 16 * count > bytes.len() {
        return Err(Malformed);
    }
    Ok(Source::Segments((0..count).map(|index| Segment::at(bytes, body + 16 * index)).collect()))
}

fn map_region(bytes: &[u8]) -> Result<MapRegion, Malformed> {
    let attributes = u64::from(u32_at(bytes, 24));
    // Later drivers give the size of pages; the bit for that was always 0 before.
    let shift = if attributes & 1 == 1 { u32_at(bytes, 28) & 0x1f } else { MIN_SHIFT };
    let count = bits(attributes, 31, 12) as u32;
    let pages = match bits(attributes, 7, 6) {
        0 if count <= MAX_INLINE_PAGES && bytes.len() >= BODY + 8 * count as usize => {
            let addresses = (0..count as usize).map(|index| u64_at(bytes, BODY + 8 * index)).collect();
            MapPages::Inline(Pages::new(addresses, shift).ok_or(Malformed)?)
        }
        1 => MapPages::Table(count),
        _ => return Err(Malformed),
    };
    Ok(MapRegion {
        key: u32_at(bytes, 20),
        start: u64_at(bytes, 8),
        len: u32_at(bytes, 16),
        rights: Rights::from_bits_truncate(bits(attributes, 5, 1) as u8),
        shift,
        pages,
    })
}

/// A receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Receive {
    pub(crate) segment: Segment,
}

impl Receive {
    /// `Err`: it belongs to another queue pair.
    pub(crate) fn decode(bytes: &[u8; 32], qpn: u32) -> Result<Receive, Malformed> {
        if u32_at(bytes, 4) != qpn {
            return Err(Malformed);
        }
        Ok(Receive { segment: Segment::at(bytes, 16) })
    }
}
