//! The packets that a profiled process sends to the injector over a SOCK_SEQPACKET socket in the run folder: one
//! packet per connection. Some kinds get an answer. The injector identifies the sender by SO_PEERCRED.
//!
//! A process that cannot enter the run folder, to which root attaches, can ask about libraries over a second socket, whose
//! name in the abstract namespace is the path of the first one.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// First byte of the packet of a forked child that has made its region file. The child's name in the run folder
/// follows, then [`OF`], then that of its parent. If the file is a memory file, its descriptor comes with the packet. The injector sends no answer.
pub const FORKED: u8 = b'F';
/// What stands before the second name in such a packet, and before a label.
pub const OF: u8 = b':';
/// First byte of the packet of a process that cannot follow the link in the run folder to one of its files. The file's name
/// follows. The injector answers with one byte and a descriptor of the file, or with an empty packet.
pub const OPENS: u8 = b'O';
/// First byte of the packet of a process that is about to execute a program. [`OF`] and the value of [`LABEL_VARIABLE`] in the program's
/// environment follows, or nothing; of a long one, the first [`LABEL_MAX`] bytes. A descriptor of the program's file
/// comes with it (SCM_RIGHTS), because only the process itself can resolve the path: the process may have another
/// root folder or mount namespace, or the path may lead through `/proc/self`. The injector answers with the name that
/// the process has from then on, or with an empty packet if it does not follow the program.
pub const EXECUTES: u8 = b'E';
/// The variable by whose value a process and its descendants are told apart from others in the recording.
pub const LABEL_VARIABLE: &str = "GPROFINJECT_LABEL";
/// The length in bytes up to which labels are told apart.
pub const LABEL_MAX: usize = 200;
/// First byte of the packet of a process that is about to execute a program which is not to be followed. The reason follows:
/// [`PROFILED`] or [`LIMITED`]. A descriptor of the program's file comes with it. The injector sends no answer.
pub const ALONE: u8 = b'N';
/// A reason in such a packet: another gprofinject profiles the program.
pub const PROFILED: u8 = b'P';
/// A reason in such a packet: the program's hard limit of address space is lower than [`LEAST_SPACE`].
pub const LIMITED: u8 = b'L';
/// The least address space, in bytes, in which a program is followed. The agent's library and the files that it maps take some megabytes
/// before the agent can tell that the limit leaves no room for hooks. A program that runs at its lowest limit would miss them.
pub const LEAST_SPACE: u64 = 16 << 20;
/// First byte of a request from another gprofinject. The injector answers with a description of what it has done.
pub const CONTROL: u8 = b'C';
/// The length in bytes of the longest name in an answer to a process.
pub const NAME_MAX: usize = 32;
/// First byte of a question about a library that the process has loaded: the agent sends a [`Question`] with a
/// descriptor of the library's file, unless the process cannot open that. The injector answers with an [`Answer`], and, if the library is to be hooked, with a
/// descriptor of the library's plan file for the given numbers. A second descriptor may come with it: that of an image whose text has the patches.
pub const LOADED: u8 = b'L';

/// The only byte of the packet in which a process names libraries about which it will ask soon. Descriptors of their files
/// come with it, at most [`AHEAD_MAX`]. The injector plans them meanwhile, and sends no answer.
pub const AHEAD: u8 = b'A';
/// The greatest number of descriptors in one such packet. The kernel passes at most 253 at once.
pub const AHEAD_MAX: usize = 250;

/// The number of bytes from the first address at which the arena of a library may lie: offsets in function records have 32 bits.
pub const ARENAS_SPAN: u64 = 1 << 32;

/// What the agent says of a library that it has found in the process.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Question {
    /// [`LOADED`], then zeros.
    pub kind: [u8; 8],
    /// Runtime address minus link address.
    pub bias: u64,
    /// Runtime address of the library's first mapped byte, a multiple of the page size.
    pub start: u64,
    /// The first address at which the arena of a library may lie, up to [`ARENAS_SPAN`] bytes further; a multiple of the page
    /// size.
    pub arenas: u64,
    /// 0, or 1 if something else is already where the plan has the arena. Then the injector finds another place.
    pub is_taken: u64,
    /// The first free function number.
    pub first_function: u32,
    /// The byte offset from the start of a thread block of the first free home slot.
    pub first_slot: u32,
    /// The byte offset of the end of the home slots of libraries.
    pub slots_end: u32,
    /// The index of the first free tail call.
    pub first_tail: u32,
    /// The byte offset from the start of a thread block of the first free basic block counter of libraries.
    pub first_counter: u32,
    /// The byte offset of the end of these counters.
    pub counters_end: u32,
    /// The thread pointer offset of the agent's words.
    pub words: i64,
    /// The [`hash_of`] the path by which the dynamic linker has loaded the library.
    pub name: u64,
}

/// Returns a hash of the bytes of a path.
pub fn hash_of(path: impl Iterator<Item = u8>) -> u64 {
    // FNV-1a: Fowler, Noll and Vo, RFC 9923.
    path.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// What the injector answers.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Answer {
    /// Whether the library is to be hooked, by the plan file whose descriptor comes with the answer: 1 or 0.
    pub hooked: u32,
    /// Number of the library's plan in the injector.
    pub plan: u32,
    /// Bytes of home slots that the library's functions take.
    pub slot_bytes: u32,
    /// Always 0.
    pub reserved: u32,
}
