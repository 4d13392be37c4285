//! .eh_frame: where functions begin, how long they are, and whether the return address is on top of the stack
//! there.
//!
//! A call can enter a function only at an address with CFA = rsp + 8. Anything else has pushed or allocated
//! before, so it is jumped to.

use std::ops::Range;

use crate::file::elf::Elf;
use crate::frames::encoded::Reader;
use gimli::{
    BaseAddresses, CallFrameInstruction, CallFrameInstructionIter, EhFrame, EhFrameOffset, EndianSlice,
    LittleEndian, UnwindSection, X86_64,
};

type Slice<'d> = EndianSlice<'d, LittleEndian>;
type Cie<'d> = gimli::CommonInformationEntry<Slice<'d>>;
type FrameDescription<'d> = gimli::FrameDescriptionEntry<Slice<'d>>;

/// What a frame description says about a range of code.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fde {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Whether CFA = rsp + 8 at its start.
    pub(crate) entered_by_call: bool,
    /// Whether the kernel returns to this code from a signal handler.
    pub(crate) signal: bool,
    /// The address of the exception table, or 0 if there is none.
    pub(crate) lsda: u64,
    offset: usize,
}

/// The contents of .eh_frame.
#[derive(Debug)]
pub(crate) struct Unwind<'d> {
    section: EhFrame<Slice<'d>>,
    bases: BaseAddresses,
    /// The CIEs by their offsets in the section, in ascending order.
    cies: Vec<(usize, Option<KnownCie<'d>>)>,
    /// The frame descriptions, sorted by start, one for each start.
    pub(crate) fdes: Vec<Fde>,
    budget: u64,
}

#[derive(Clone, Debug)]
struct KnownCie<'d> {
    cie: Cie<'d>,
    /// The CFA after the initial instructions.
    cfa: Cfa,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cfa {
    Register(gimli::Register, i64),
    Expression,
}

impl Cfa {
    const RETURN_ADDRESS_ON_TOP: Cfa = Cfa::Register(X86_64::RSP, 8);

    fn with_offset(self, offset: i64) -> Self {
        match self {
            Cfa::Register(register, _) => Cfa::Register(register, offset),
            Cfa::Expression => Cfa::Expression,
        }
    }
}

impl<'d> Unwind<'d> {
    /// Reads .eh_frame.
    pub(crate) fn read(elf: &Elf<'d>) -> Self {
        let (bytes, address) = eh_frame(elf).unwrap_or_default();
        // Nothing on x86-64 is relative to sections of other names.
        let bases =
            BaseAddresses::default().set_eh_frame(address).set_eh_frame_hdr(elf.eh_frame_hdr.unwrap_or(0));
        let mut unwind = Unwind {
            section: EhFrame::new(bytes, LittleEndian),
            bases,
            cies: Vec::new(),
            // An FDE has 24 bytes or more; most have about 32.
            fdes: Vec::with_capacity(bytes.len() / 32),
            // Enough to read every instruction of the section several times. Only a section that is made to
            // waste time needs more.
            budget: 4 * bytes.len() as u64 + 1024,
        };
        unwind.read_entries(bytes);
        unwind.read_listed(elf, address);
        // The sort is stable, and fast on the few sorted runs that linkers leave.
        unwind.fdes.sort_by_key(|fde| fde.start);
        unwind.fdes.dedup_by_key(|fde| fde.start);
        unwind
    }

    /// Reads the entries by their lengths, so that an entry that cannot be read has no effect on the others.
    fn read_entries(&mut self, bytes: &'d [u8]) {
        let u32_at = |at: usize| {
            let word: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
            Some(u32::from_le_bytes(word))
        };
        let mut at = 0;
        while let Some(length) = u32_at(at) {
            // Zero ends the section for readers that go from entry to entry, but the linker's table may
            // continue after it.
            if length == 0 {
                at += 4;
                continue;
            }
            let (body, length) = if length == u32::MAX {
                let Some(long) = bytes.get(at + 4..at + 12) else { break };
                (at + 12, long.iter().rev().fold(0u64, |value, &byte| value << 8 | u64::from(byte)))
            } else {
                (at + 4, u64::from(length))
            };
            let end = usize::try_from(length).ok().and_then(|length| body.checked_add(length));
            let Some(end) = end.filter(|&end| end <= bytes.len()) else { break };
            match u32_at(body) {
                Some(0) => {
                    let known = self.cie(at);
                    self.cies.push((at, known));
                }
                Some(_) => self.read_fde(at),
                None => break,
            }
            at = end;
        }
    }

    /// Reads the frame descriptions that only .eh_frame_hdr leads to. That is where unwinders look for them, so an entry with a wrong
    /// length, behind which nothing is found in the other way, does not disturb them.
    fn read_listed(&mut self, elf: &Elf<'d>, section: u64) {
        const MOST_CIES: usize = 1 << 12;
        let Some((header, at)) = elf.eh_frame_hdr.and_then(|at| Some((elf.rest_at(at)?, at))) else { return };
        let bases = BaseAddresses::default().set_eh_frame_hdr(at);
        let parsed = gimli::EhFrameHdr::new(header, LittleEndian).parse(&bases, 8);
        let Some(table) = parsed.as_ref().ok().and_then(|parsed| parsed.table()) else { return };
        let read: Vec<usize> = self.fdes.iter().map(|fde| fde.offset).collect();
        let mut entries = table.iter(&bases);
        // An entry of the table has eight bytes or more.
        for _ in 0..header.len() / 8 {
            let Ok(Some((_, gimli::Pointer::Direct(fde)))) = entries.next() else { return };
            let Some(offset) = fde.checked_sub(section).and_then(|offset| usize::try_from(offset).ok())
            else {
                continue;
            };
            if read.binary_search(&offset).is_ok() {
                continue;
            }
            let Ok(partial) = self.section.partial_fde_from_offset(&self.bases, EhFrameOffset(offset)) else {
                continue;
            };
            let wanted = partial.cie_offset().0;
            match self.cies.binary_search_by_key(&wanted, |(at, _)| *at) {
                Ok(_) => {}
                // Files have few of them.
                Err(_) if self.cies.len() >= MOST_CIES => continue,
                Err(index) => {
                    let known = self.cie(wanted);
                    self.cies.insert(index, (wanted, known));
                }
            }
            self.read_fde(offset);
        }
    }

    /// Reads the CIE at an offset.
    fn cie(&mut self, offset: usize) -> Option<KnownCie<'d>> {
        let cie = self.section.cie_from_offset(&self.bases, EhFrameOffset(offset)).ok()?;
        let cfa = self.initial_cfa(&cie);
        Some(KnownCie { cie, cfa })
    }

    fn read_fde(&mut self, offset: usize) {
        let Some((fde, cfa)) = self.parse(offset) else { return };
        let start = fde.initial_address();
        let Some(end) = start.checked_add(fde.len()).filter(|&end| end > start) else { return };
        let lsda = match fde.lsda() {
            Some(gimli::Pointer::Direct(address)) => address,
            _ => 0,
        };
        let signal = fde.is_signal_trampoline();
        let instructions = fde.instructions(&self.section, &self.bases);
        let cfa = cfa_at(fde.cie(), cfa, instructions, Some(0), &mut self.budget);
        let entered_by_call = cfa == Some(Cfa::RETURN_ADDRESS_ON_TOP) && !signal;
        self.fdes.push(Fde { start, end, entered_by_call, signal, lsda, offset });
    }

    /// Parses an FDE. Its CIE comes before it, mostly immediately.
    fn parse(&self, offset: usize) -> Option<(FrameDescription<'d>, Cfa)> {
        let partial = self.section.partial_fde_from_offset(&self.bases, EhFrameOffset(offset)).ok()?;
        let wanted = partial.cie_offset().0;
        let known = match self.cies.last() {
            Some((at, known)) if *at == wanted => known.as_ref()?,
            _ => {
                let index = self.cies.binary_search_by_key(&wanted, |(at, _)| *at).ok()?;
                self.cies[index].1.as_ref()?
            }
        };
        let fde = partial.parse(|_, _, _| Ok(known.cie.clone())).ok()?;
        Some((fde, known.cfa))
    }

    fn initial_cfa(&mut self, cie: &Cie<'d>) -> Cfa {
        let instructions = cie.instructions(&self.section, &self.bases);
        cfa_at(cie, Cfa::Expression, instructions, None, &mut self.budget).unwrap_or(Cfa::Expression)
    }

    /// Whether the return address is on top of the stack at this address; `None` if nothing describes the
    /// address. Meant for the rare entry in the middle of a function.
    pub(crate) fn entered_by_call(&mut self, address: u64) -> Option<bool> {
        let after = self.fdes.partition_point(|fde| fde.start <= address);
        let fde = *self.fdes[..after].last().filter(|fde| address < fde.end)?;
        if fde.start == address || fde.signal {
            return Some(fde.entered_by_call);
        }
        let (parsed, cfa) = self.parse(fde.offset)?;
        let instructions = parsed.instructions(&self.section, &self.bases);
        let cfa = cfa_at(parsed.cie(), cfa, instructions, Some(address - fde.start), &mut self.budget);
        Some(cfa == Some(Cfa::RETURN_ADDRESS_ON_TOP))
    }
}

/// What is known of .eh_frame for later questions. It contains none of gimli's types that borrow, which would make it, and
/// the image with it, invariant.
#[derive(Debug, Default)]
pub struct FrameTable {
    bases: BaseAddresses,
    fdes: Vec<Fde>,
}

/// The frame descriptions of a program.
#[derive(Clone, Copy, Debug)]
pub struct Frames<'i, 'd> {
    /// .eh_frame.
    pub(crate) bytes: &'d [u8],
    pub(crate) table: &'i FrameTable,
}

impl Unwind<'_> {
    /// Keeps what later questions need.
    pub(crate) fn keep(self) -> FrameTable {
        FrameTable { bases: self.bases, fdes: self.fdes }
    }
}

/// The CFAs in the code that one frame description covers.
#[derive(Debug)]
pub struct Cfas {
    start: u64,
    end: u64,
    /// The CFA from each address on, sorted.
    rows: Vec<(u64, Option<(u16, i64)>)>,
}

impl Cfas {
    /// Returns the CFA at an address as a DWARF register and an offset, or `None` if the description is not
    /// that simple.
    pub fn at(&self, address: u64) -> Option<(u16, i64)> {
        let after = self.rows.partition_point(|&(from, _)| from <= address);
        self.rows[..after].last().filter(|_| address < self.end)?.1
    }

    /// Returns the CFA at an address as an address in memory, for these values of the stack pointer and the frame pointer. Returns `None`
    /// if it does not follow from them.
    pub fn value(&self, address: u64, rsp: u64, rbp: u64) -> Option<u64> {
        let (register, offset) = self.at(address)?;
        let value = match gimli::Register(register) {
            X86_64::RSP => rsp,
            X86_64::RBP => rbp,
            _ => return None,
        };
        Some(value.wrapping_add_signed(offset))
    }

    /// Whether the description covers an address.
    pub fn covers(&self, address: u64) -> bool {
        (self.start..self.end).contains(&address)
    }
}

impl Frames<'_, '_> {
    /// Whether a frame description begins at an address. Those of signal frames begin a byte before their code, because an unwinder
    /// looks for the address before the one to which a handler returns.
    pub(crate) fn begin(&self, address: u64) -> bool {
        let find = |address: u64| self.table.fdes.binary_search_by_key(&address, |fde| fde.start).ok();
        find(address).is_some()
            || find(address.wrapping_sub(1)).is_some_and(|index| self.table.fdes[index].signal)
    }

    /// Returns the CFA at an address, as [`Cfas::at`] does.
    pub(crate) fn cfa(&self, address: u64) -> Option<(u16, i64)> {
        self.cfas(address, Some(address))?.at(address)
    }

    /// Returns the CFAs in the code that the frame description of an address covers, up to the address `last`
    /// if one is given.
    pub(crate) fn cfas(&self, address: u64, last: Option<u64>) -> Option<Cfas> {
        let after = self.table.fdes.partition_point(|fde| fde.start <= address);
        let fde = self.table.fdes[..after].last().filter(|fde| address < fde.end)?;
        let section = EhFrame::new(self.bytes, LittleEndian);
        let partial = section.partial_fde_from_offset(&self.table.bases, EhFrameOffset(fde.offset)).ok()?;
        let parsed = partial.parse(|section, bases, offset| section.cie_from_offset(bases, offset)).ok()?;
        Cfas::of(&section, &self.table.bases, &parsed, fde.start..fde.end, last)
    }
}

impl Cfas {
    /// Reads those of a frame description, which covers these addresses, up to the address `last` if one is given.
    pub(crate) fn of<'d>(
        section: &EhFrame<Slice<'d>>,
        bases: &BaseAddresses,
        parsed: &FrameDescription<'d>,
        covered: Range<u64>,
        last: Option<u64>,
    ) -> Option<Cfas> {
        // The number of rows of one function that are read at most.
        const MOST: u64 = 1 << 16;
        let mut budget = MOST;
        let cie = parsed.cie();
        let before = cie.instructions(section, bases);
        let initial = cfa_at(cie, Cfa::Expression, before, None, &mut budget)?;
        let instructions = parsed.instructions(section, bases);
        let simple = |cfa| match cfa {
            Cfa::Register(register, offset) => Some((register.0, offset)),
            Cfa::Expression => None,
        };
        let (mut rows, mut from) = (Vec::new(), covered.start);
        let stop = last.map(|last| last - covered.start);
        let end = follow_cfa(cie, initial, instructions, &mut budget, |location, cfa| {
            rows.push((from, simple(cfa)));
            from = covered.start.saturating_add(location);
            stop.is_none_or(|stop| location <= stop)
        });
        // The CFA is unknown after an instruction that cannot be interpreted.
        rows.push((from, end.and_then(simple)));
        Some(Cfas { start: covered.start, end: covered.end, rows })
    }
}

/// Whether a frame description says somewhere that there is no return address, as where a program or a thread begins (DWARF 5, 6.4.4).
pub(crate) fn may_be_outermost<'d>(
    section: &EhFrame<Slice<'d>>,
    bases: &BaseAddresses,
    parsed: &FrameDescription<'d>,
) -> bool {
    let cie = parsed.cie();
    let has_end = |mut instructions: CallFrameInstructionIter<'_, Slice<'d>>| {
        while let Ok(Some(instruction)) = instructions.next() {
            let is_end = |register| register == cie.return_address_register();
            if matches!(instruction, CallFrameInstruction::Undefined { register } if is_end(register)) {
                return true;
            }
        }
        false
    };
    has_end(cie.instructions(section, bases)) || has_end(parsed.instructions(section, bases))
}

/// A frame description in its encoded form.
#[derive(Clone, Copy, Debug)]
pub struct Description<'d> {
    pub start: u64,
    pub end: u64,
    pub common: Common<'d>,
    pub instructions: &'d [u8],
    /// The address of the exception table, or 0 if there is none.
    pub lsda: u64,
}

/// A common information entry in its encoded form.
#[derive(Clone, Copy, Debug)]
pub struct Common<'d> {
    /// Its offset in the section.
    pub offset: usize,
    pub code_alignment: u64,
    /// The bytes of the data alignment and of the return address's column.
    pub middle: &'d [u8],
    /// The encoding and the value of the personality routine, which is absolute here.
    pub personality: Option<(u8, u64)>,
    pub has_lsda: bool,
    pub signal: bool,
    pub instructions: &'d [u8],
}

impl<'d> Frames<'_, 'd> {
    /// Returns the descriptions of the code in a range, or `None` if one of them cannot be read.
    pub fn descriptions(&self, lo: u64, hi: u64) -> Option<Vec<Description<'d>>> {
        let from = self.table.fdes.partition_point(|fde| fde.end <= lo);
        self.table.fdes[from..]
            .iter()
            .take_while(|fde| fde.start < hi)
            .map(|fde| self.description(fde))
            .collect()
    }

    /// Returns the bytes of the section from an entry's start to its end, after the length.
    fn entry(&self, offset: usize) -> Option<Reader<'d>> {
        let section = self.table.bases.eh_frame.section?;
        let rest = self.bytes.get(offset..)?;
        let (len, body) = rest.split_first_chunk::<4>()?;
        // 64-bit entries are only for sections larger than those of any program.
        let len = usize::try_from(u32::from_le_bytes(*len)).ok().filter(|&len| len < 0xffff_fff0)?;
        Some(Reader { bytes: body.get(..len)?, address: section + offset as u64 + 4, function: 0 })
    }

    fn description(&self, fde: &Fde) -> Option<Description<'d>> {
        let mut reader = self.entry(fde.offset)?;
        let here = fde.offset + 4;
        let back = u32::from_le_bytes(reader.take()?);
        let (common, encoding) = self.common(here.checked_sub(back as usize)?)?;
        let encoding = gimli::DwEhPe(encoding);
        reader.value(encoding)?;
        reader.value(gimli::DwEhPe(encoding.0 & 0xf))?;
        let len = usize::try_from(reader.uleb()?).ok()?;
        let instructions = reader.bytes.get(len..)?;
        Some(Description { start: fde.start, end: fde.end, common, instructions, lsda: fde.lsda })
    }

    /// Returns the entry, and the encoding of the addresses in its descriptions.
    fn common(&self, offset: usize) -> Option<(Common<'d>, u8)> {
        let mut reader = self.entry(offset)?;
        if u32::from_le_bytes(reader.take()?) != 0 {
            return None;
        }
        let version = reader.byte()?;
        let end = reader.bytes.iter().position(|&b| b == 0)?;
        let augmentation = reader.bytes.get(..end)?;
        for _ in 0..=end {
            reader.byte()?;
        }
        let code_alignment = reader.uleb()?;
        let before = reader.bytes;
        reader.sleb()?;
        match version {
            1 => u64::from(reader.byte()?),
            3 => reader.uleb()?,
            _ => return None,
        };
        let middle = before.get(..before.len() - reader.bytes.len())?;
        // Without this letter, the length of what follows is unknown.
        let (b'z', letters) = augmentation.split_first()? else { return None };
        let len = usize::try_from(reader.uleb()?).ok()?;
        let instructions = reader.bytes.get(len..)?;
        let mut common = Common {
            offset,
            code_alignment,
            middle,
            personality: None,
            has_lsda: false,
            signal: false,
            instructions,
        };
        let mut encoding = 0;
        for letter in letters {
            match letter {
                b'L' => {
                    common.has_lsda = true;
                    reader.byte()?;
                }
                b'P' => {
                    let encoding = reader.byte()?;
                    let plain = gimli::DwEhPe(encoding & 0x7f);
                    common.personality = Some((encoding, reader.pointer(plain)?));
                }
                b'R' => encoding = reader.byte()?,
                b'S' => common.signal = true,
                _ => return None,
            }
        }
        // The start of code cannot be indirect.
        (encoding & 0x80 == 0).then_some((common, encoding))
    }
}

/// Returns the CFA that applies `stop` bytes after the start, or after all instructions if `stop` is `None`.
/// The result is `None` if it cannot be determined.
fn cfa_at(
    cie: &Cie<'_>,
    initial: Cfa,
    instructions: CallFrameInstructionIter<'_, Slice<'_>>,
    stop: Option<u64>,
    budget: &mut u64,
) -> Option<Cfa> {
    follow_cfa(cie, initial, instructions, budget, |location, _| stop.is_none_or(|stop| location <= stop))
}

/// Returns the CFA after all instructions, or the one at which `goes_on` returns false. `goes_on` is called
/// at the end of each row, with the distance from the start to the next row and with the row's CFA. The
/// result is `None` if it cannot be determined.
fn follow_cfa(
    cie: &Cie<'_>,
    initial: Cfa,
    mut instructions: CallFrameInstructionIter<'_, Slice<'_>>,
    budget: &mut u64,
    mut goes_on: impl FnMut(u64, Cfa) -> bool,
) -> Option<Cfa> {
    const DEEPEST: usize = 32;
    let mut saved = Vec::new();
    let mut cfa = initial;
    let mut location = 0u64;
    let factored = |offset: i64| offset.wrapping_mul(cie.data_alignment_factor());
    while let Some(instruction) = instructions.next().ok()? {
        *budget = budget.checked_sub(1)?;
        match instruction {
            CallFrameInstruction::AdvanceLoc { delta } => {
                let bytes = u64::from(delta).saturating_mul(cie.code_alignment_factor());
                location = location.saturating_add(bytes);
                if !goes_on(location, cfa) {
                    break;
                }
            }
            // No compiler writes this instruction. It would be an absolute address.
            CallFrameInstruction::SetLoc { .. } => return None,
            CallFrameInstruction::DefCfa { register, offset } => {
                cfa = Cfa::Register(register, i64::try_from(offset).ok()?);
            }
            CallFrameInstruction::DefCfaSf { register, factored_offset } => {
                cfa = Cfa::Register(register, factored(factored_offset));
            }
            CallFrameInstruction::DefCfaRegister { register } => {
                let Cfa::Register(_, offset) = cfa else { return None };
                cfa = Cfa::Register(register, offset);
            }
            CallFrameInstruction::DefCfaOffset { offset } => {
                cfa = cfa.with_offset(i64::try_from(offset).ok()?);
            }
            CallFrameInstruction::DefCfaOffsetSf { factored_offset } => {
                cfa = cfa.with_offset(factored(factored_offset));
            }
            CallFrameInstruction::DefCfaExpression { .. } => cfa = Cfa::Expression,
            CallFrameInstruction::RememberState if saved.len() < DEEPEST => saved.push(cfa),
            CallFrameInstruction::RememberState => return None,
            CallFrameInstruction::RestoreState => cfa = saved.pop()?,
            _ => {}
        }
    }
    Some(cfa)
}

/// Finds .eh_frame as unwinders do: by means of .eh_frame_hdr, which PT_GNU_EH_FRAME names, and which has a version, three
/// encodings and a pointer to it. A section of that name only says where it ends. Without PT_GNU_EH_FRAME (in old static
/// programs) the section is believed.
pub(crate) fn eh_frame<'d>(elf: &Elf<'d>) -> Option<(&'d [u8], u64)> {
    let section = elf.section(b".eh_frame").filter(|section| section.loaded());
    let section = section.and_then(|section| Some((section.bytes?, section.address)));
    let Some(header_at) = elf.eh_frame_hdr else { return section };
    let header = elf.rest_at(header_at)?;
    let bases = BaseAddresses::default().set_eh_frame_hdr(header_at);
    let parsed = gimli::EhFrameHdr::new(header, LittleEndian).parse(&bases, 8).ok()?;
    let found = parsed.eh_frame_ptr().direct().ok()?;
    section.filter(|&(_, address)| address == found).or_else(|| Some((elf.rest_at(found)?, found)))
}
