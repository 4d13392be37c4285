//! One step from a frame to its caller, by the unwind tables of a mapped file.
//!
//! The bytes of a file and where it is mapped enter; the registers of the caller leave. Who reads the stack, and what stands
//! between two frames, is not known here.

use ::object::{File, Object, ObjectSegment};
use gimli::{
    BaseAddresses, CfaRule, EhFrame, EhFrameHdr, LittleEndian, Register, RegisterRule, UnwindContext,
    UnwindSection, X86_64,
};

use crate::file::elf::Elf;
use crate::frames::unwind::{self, Cfas};

/// The number of bytes of an unwind table that are read at most. Those of node have 10 MB.
const TABLE_MAX: usize = 256 << 20;
/// The smallest page of Linux, in bytes.
const PAGE: u64 = 4096;
/// The registers that calls preserve, by their DWARF numbers: rbx, rbp, r12 to r15.
const PRESERVED: [u16; 6] = [3, 6, 12, 13, 14, 15];
const RSP: usize = 7;

/// The registers of a frame that are known, by their DWARF numbers (System V ABI, figure 3.36), and its program counter.
#[derive(Clone, Copy, Debug)]
pub struct Registers {
    pub values: [Option<u64>; 16],
    pub pc: u64,
}

/// A range of a process's memory into which a part of a file is mapped.
#[derive(Clone, Copy, Debug)]
pub struct Mapped {
    pub lo: u64,
    pub hi: u64,
    /// The offset in the file.
    pub offset: u64,
}

/// The unwind tables of a file: the link address and the bytes of each.
#[derive(Clone, Copy, Debug)]
pub struct Sections<'d> {
    /// `.eh_frame_hdr`, and what follows it; its length is not known without section headers.
    pub header: Option<(u64, &'d [u8])>,
    /// `.eh_frame`.
    pub frames: (u64, &'d [u8]),
}

impl<'d> Sections<'d> {
    /// Finds the tables in the bytes of a file. Returns `None` if it is damaged or has none.
    pub fn find(bytes: &'d [u8]) -> Option<Sections<'d>> {
        let elf = Elf::parse_any(bytes).ok()?;
        let (frames, frames_at) = unwind::eh_frame(&elf)?;
        let header = elf.eh_frame_hdr.and_then(|at| Some((at, elf.rest_at(at)?)));
        Some(Sections { header, frames: (frames_at, frames) })
    }

    /// Returns the CFAs in the code that the frame description of a link address covers, and whether a frame there may be the outermost one of
    /// its stack. Returns `None` if no table finds the description, or its CFAs are damaged.
    pub fn cfas(&self, address: u64) -> Option<(Cfas, bool)> {
        let ((header_at, header), (frames_at, frames)) = (self.header?, self.frames);
        let bases = BaseAddresses::default().set_eh_frame_hdr(header_at).set_eh_frame(frames_at);
        let header = EhFrameHdr::new(header, LittleEndian).parse(&bases, 8).ok()?;
        let frames = EhFrame::new(frames, LittleEndian);
        let entry =
            header.table()?.fde_for_address(&frames, &bases, address, EhFrame::cie_from_offset).ok()?;
        let cfas = Cfas::of(&frames, &bases, &entry, entry.initial_address()..entry.end_address(), None)?;
        Some((cfas, unwind::may_be_outermost(&frames, &bases, &entry)))
    }
}

/// Returns a copy of a table that may end behind it.
fn kept(bytes: &[u8]) -> Vec<u8> {
    bytes[..bytes.len().min(TABLE_MAX)].to_vec()
}

/// The unwind tables of a mapped file.
#[derive(Debug)]
pub struct Tables {
    /// `.eh_frame_hdr` and `.eh_frame`: the link address and the bytes of each.
    header: (u64, Vec<u8>),
    frames: (u64, Vec<u8>),
    /// The address in memory minus the address in the file.
    bias: u64,
}

impl Tables {
    /// Reads the tables of a file that is mapped there. Returns `None` if it is damaged, has none, or the mapping is none of
    /// its segments.
    pub fn read(bytes: &[u8], mapped: Mapped) -> Option<Tables> {
        let object = File::parse(bytes).ok()?;
        let segment = object.segments().find(|segment| {
            let (offset, len) = segment.file_range();
            let from = offset & !(PAGE - 1);
            let end = offset.saturating_add(len);
            (from..end).contains(&mapped.offset)
                && (mapped.offset - from).saturating_add(mapped.hi - mapped.lo)
                    <= (end - from).checked_next_multiple_of(PAGE).unwrap_or(u64::MAX)
        })?;
        let (offset, _) = segment.file_range();
        let address = segment.address().wrapping_add(mapped.offset).wrapping_sub(offset);
        let bias = mapped.lo.wrapping_sub(address);
        let Sections { header, frames } = Sections::find(bytes)?;
        let owned = |(at, bytes)| (at, kept(bytes));
        Some(Tables { header: owned(header?), frames: owned(frames), bias })
    }

    /// Returns the registers of the caller of a frame. `at` is the runtime address of an instruction of the frame's function,
    /// and `word` reads the process's memory. `Some(None)` means that the frame has no caller, and `None` that the caller
    /// cannot be determined.
    pub fn caller(
        &self,
        registers: &[Option<u64>; 16],
        at: u64,
        word: impl Fn(u64) -> Option<u64>,
    ) -> Option<Option<Registers>> {
        let ((header_at, header), (frames_at, frames)) = (&self.header, &self.frames);
        let bases = BaseAddresses::default().set_eh_frame_hdr(*header_at).set_eh_frame(*frames_at);
        let header = EhFrameHdr::new(header, LittleEndian).parse(&bases, 8).ok()?;
        let frames = EhFrame::new(frames, LittleEndian);
        let address = at.wrapping_sub(self.bias);
        let entry =
            header.table()?.fde_for_address(&frames, &bases, address, EhFrame::cie_from_offset).ok()?;
        let mut context = UnwindContext::new();
        let row = entry.unwind_info_for_address(&frames, &bases, &mut context, address).ok()?;
        let CfaRule::RegisterAndOffset { register, offset } = *row.cfa() else { return None };
        let cfa = (*registers.get(usize::from(register.0))?)?.wrapping_add_signed(offset);
        let value = |register: Register| {
            Some(match row.register(register) {
                Some(RegisterRule::Undefined) if register == X86_64::RA => 0,
                Some(RegisterRule::Offset(offset)) => word(cfa.wrapping_add_signed(offset))?,
                None | Some(RegisterRule::SameValue | RegisterRule::Undefined) => {
                    (*registers.get(usize::from(register.0))?)?
                }
                _ => return None,
            })
        };
        let mut values = *registers;
        for register in PRESERVED {
            values[usize::from(register)] = value(Register(register));
        }
        let pc = value(X86_64::RA)?;
        values[RSP] = Some(cfa);
        Some((pc != 0).then_some(Registers { values, pc }))
    }
}
