//! The sizes of the code in thunks and bodies on whose places the planner and the agent agree.

/// Size in bytes of the thunk's `call`, which ends at [`crate::plan::FunctionRecord::exit`].
pub const CALL_LEN: u32 = 5;

/// Size in bytes of a near jump with which a thunk's short branches continue.
pub const ISLAND: u32 = 5;

/// Size in bytes of the code with which a thunk's exit handles a cell that is not that of a standard frame without a link.
pub const NOTE: u32 = 27;

/// Bytes of the jump with which the thunk of a function that has [`crate::plan::NEEDS_NO_CELL`] without
/// [`crate::plan::ENTRY_ONLY`] continues at `resume`, after it has set rsp to CFA - 8. It comes directly before the `call` of
/// the body.
pub const CALLBACK_JUMP: u32 = 2;

/// Bytes from the start of the stubs of such a function up to the place where rsp is the CFA: those of its second look, and
/// of `lea rsp, [rsp+8]`.
pub const CALLBACK_STUB: u32 = 21 + 5;

/// Bytes of the code at the start of the body of a function in a plan with measured calls: a store of the function's number, and
/// a call through [`crate::plan::ArenaHeader::begin`] or [`crate::plan::ArenaHeader::mark`].
pub const BEGIN_LEN: u32 = 14;

/// The same if only outer calls are measured: two comparisons of rsp with [`crate::plan::ThreadWords::deep`] and
/// [`crate::plan::ThreadWords::deep_from`], each with a short branch, come before.
pub const OUTER_BEGIN_LEN: u32 = 2 * (9 + 2) + BEGIN_LEN;

/// The distance in bytes from the return slot down to the function's number, for [`crate::plan::ArenaHeader::begin`].
pub const NUMBER_BELOW: u64 = 64;

/// The distance in bytes from the CFA down to the function's number, where exits tell it: for [`crate::plan::ArenaHeader::end`], if the
/// results of calls are kept ([`crate::tally`]).
pub const END_NUMBER_BELOW: i64 = 80;

/// Size in bytes of the three jumps to the slow path of exits, which follow the [`crate::plan::ArenaHeader`]. They are for thunks
/// that have saved rax and r11, only r11, or only rax.
pub const EXIT_JUMPS: usize = 3 * 6 + 2 * 5;

/// Offset in the program's arena of the labels of interned frames ([`crate::plan::Interned`]). Each is the address of a call of
/// [`crate::plan::ArenaHeader::interned`], and they are [`LABEL_LEN`] bytes apart.
pub const LABELS_AT: usize = 256;

/// Size in bytes of the code at a label of interned frames.
pub const LABEL_LEN: usize = 8;
