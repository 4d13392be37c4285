//! The agent's words of each thread, and the shadow stack to which they lead.

use core::mem::offset_of;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The agent's words of each thread, an initial-exec TLS variable. Thunks address them as `fs:[offset]`. In a standalone
/// program ([`crate::plan::PlanHeader::standalone`]) they are at the start of memory of the agent's own, to which the base of
/// gs leads, and thunks address them as `gs:[offset]`.
///
/// Only the thread itself and its signal handlers write the words; the injector does while the thread is stopped.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct ThreadWords {
    /// The address of the thread block. Before the first hooked call, it is that of a block of zeros that all threads
    /// share and that contains no arc.
    pub block: u64,
    /// The shadow of the thread's window, the [`WINDOW`] bytes of the address space whose frames the thread's thunks
    /// find without help: the [`Cell`] of a frame is at `cells + 2 * (CFA - window)`. The word before the shadow
    /// ([`WINDOW_WORD`]) contains the window's address, a multiple of its size. So one load of this word yields an
    /// address and a shadow that belong together, even in a thunk that a signal handler interrupts.
    pub cells: u64,
    /// The CFA of the last *event*: of the hooked frame that was entered last, or of a frame with a link
    /// ([`Cell::link`]) that has returned since, or of the frame that a search has found to be the newest live one.
    /// While the thread runs on its own stack, no newer live frame is on that stack, so a search for the caller of a
    /// function that unhooked code calls begins here. 0 if nothing is known.
    pub last: u64,
    /// The CFA of the thread's first hooked call, or 0 if there was none yet. The thread's stack continues from there
    /// up to the thread's control block.
    pub first_frame: u64,
    /// Stack pointer of the frame in whose cleanup landing pad an exception has landed, or 0 if the exception has
    /// reached its handler. As long as the stack is no shorter, the exception may still be in flight.
    pub landing: u64,
    /// The lowest address of the thread's own stack, or 0 if its extent is not known.
    pub stack_lo: u64,
    /// The end address of the thread's own stack, or 0 if its extent is not known.
    pub stack_hi: u64,
    /// The same as `last` for frames of hooked functions of libraries: `last` is written only by thunks of the program,
    /// and this word only by thunks of libraries. `u64::MAX` if no function of a library is hooked.
    pub library_last: u64,
    /// If the innermost open call is as deep as calls are measured: its CFA - 8. Calls are deeper, and are not measured, if their
    /// thunks find the stack pointer from `deep_from` up to here. Otherwise 0. The agent's gates decide the same without these
    /// words, so they may be 0 at any time.
    pub deep: u64,
    /// The lowest address of the stack on which that call's frame is.
    pub deep_from: u64,
    /// The addresses between which no frame is alive on the thread's own stack: see the agent's `hot/clear.rs`. Both are 0 if there is no
    /// such part.
    pub clear_from: u64,
    pub clear_to: u64,
    /// The number of cells that searches for a caller have examined in vain since the last of them became a clear part.
    pub vain: u64,
    /// The length in bytes of the part at the end of the thread's own stack in which no frame of the program is alive, as far as that is
    /// known: see the agent's `hot/bare.rs`.
    pub bare: u64,
}

/// Bytes of the agent's thread-local variable that begins with the words, and the only one.
pub const WORDS_BYTES: u64 = 152;
/// Its alignment.
pub const WORDS_ALIGN: u64 = 64;

/// Size of a window, in bytes.
pub const WINDOW: u64 = 1 << 26;

/// The offset, relative to the shadow, of the word that holds the window's address.
pub const WINDOW_WORD: i64 = -8;

/// The shadow stack's record of one hooked frame that has not returned. Its address follows from the frame's CFA (the
/// value of rsp after the return), so the thread that returns through the frame finds it, in whatever order frames
/// return and on whichever thread.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Cell {
    /// The frame's own return address, or 0 if there has never been a frame.
    pub return_address: u64,
    /// Number of the function that runs in the frame: the called function, or the last tail-called one.
    pub function: u32,
    /// The upper two bits are the cell's *state*, those of [`STATE`]. The others are the *distance* ([`DISTANCE`]): for a
    /// frame that unhooked code has called, the distance in cells, plus 1, to the cell of the nearest frame that was alive
    /// at the call, or to that of the stack's end if none was. [`LEFT`] means that a jump has left the frame, which can no
    /// longer be a caller; if it belongs to a coroutine that is resumed, it can still return. 0 means unknown. The distance
    /// remains when the frame returns, until another frame takes its place.
    pub link: u32,
}

/// The bits of [`Cell::link`] that are the cell's state. If none of them is set, the cell is that of the *standard* frame with
/// this CFA, whose return slot contains the exit label of its function.
pub const STATE: u32 = 3 << 30;

/// A state: the cell is that of an *interned* frame, whose return slot contains a label that stands for its return address
/// ([`Interned`]). The cell of the standard frame with this CFA, if there is one, is [`ASIDE`] bytes further on.
pub const INTERNED: u32 = 1 << 30;

/// A state: an interned frame is returning through the exit code of its function.
pub const RETURNING: u32 = 2 << 30;

/// A state: the frame is gone. Thunks compare the highest byte, so no greater state may be possible.
pub const FREE: u32 = 3 << 30;

/// The link of a cell that is free and *closed*: a thunk takes it for one in use, and asks the agent. See the agent's `hot/blocks.rs`.
pub const CLOSED: u32 = FREE | 1 << 24;

/// The bits of [`Cell::link`] that are the distance.
pub const DISTANCE: u32 = !STATE;

/// See [`Cell::link`].
pub const LEFT: u32 = 1;

/// The distance in bytes from a cell to the one that keeps the standard frame's contents while another frame with the same CFA
/// uses the cell.
pub const ASIDE: u64 = 2 * WINDOW;

/// The length in bytes of the table of shadows: one word for each window of the user's address space, which has 47 bits. The
/// table of interned labels, [`INTERNED_LABELS`] times [`Interned`], follows it.
pub const SHADOWS: u64 = (1 << 47) / WINDOW * 8;

/// An *interned label*: an address that stands for a function and a return address. A frame whose return slot contains such a
/// label can return without its cell, so any number of frames with the same CFA can take turns on a stack that coroutines
/// share.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Interned {
    /// The return address, or 0 if the label is not in use.
    pub return_address: u64,
    /// The number of the function, plus 1.
    pub function: u32,
    /// 0.
    pub reserved: u32,
}

/// The number of interned labels of a process.
pub const INTERNED_LABELS: u64 = 4096;

/// The code to which the first function of a context of glibc's makecontext returns: `mov rsp, rbx; mov rdi, [rsp]`
/// (`__start_context` in sysdeps/unix/sysv/linux/x86_64/__start_context.S). The agent recognises the stack of such a
/// context by this code, which must therefore stay as it is. It is not called, so there is no return address to hook.
pub const START_OF_CONTEXT: [u8; 7] = [0x48, 0x89, 0xdc, 0x48, 0x8b, 0x3c, 0x24];

// The planner's thunks, its unwind tables, and the agent's assembly address these fields.
const _: () = {
    assert!(size_of::<ThreadWords>() == 112);
    assert!(offset_of!(ThreadWords, block) == 0);
    assert!(offset_of!(ThreadWords, cells) == 8);
    assert!(offset_of!(ThreadWords, last) == 16);
    assert!(offset_of!(ThreadWords, first_frame) == 24);
    assert!(offset_of!(ThreadWords, landing) == 32);
    assert!(offset_of!(ThreadWords, stack_lo) == 40);
    assert!(offset_of!(ThreadWords, stack_hi) == 48);
    assert!(offset_of!(ThreadWords, library_last) == 56);
    assert!(offset_of!(ThreadWords, deep) == 64);
    assert!(offset_of!(ThreadWords, deep_from) == 72);
    assert!(size_of::<Cell>() == 16);
    assert!(offset_of!(Cell, return_address) == 0);
    assert!(offset_of!(Cell, function) == 8);
    assert!(offset_of!(Cell, link) == 12);
    assert!(size_of::<Interned>() == 16);
    assert!(offset_of!(Interned, return_address) == 0);
};
