//! The state that code sees on a [`crate::machine::Machine`], and how it stops.

/// The byte that fills the code areas.
pub const INT3: u8 = 0xcc;

/// All registers that code can see.
#[derive(Clone)]
pub struct State {
    pub general: libc::user_regs_struct,
    /// The x87 and vector registers and masks, as `xsave` writes them.
    pub extended: Vec<u8>,
}

/// Why the code stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// At an `int3` at this address.
    Breakpoint(u64),
    /// By this signal at this address.
    Signal(i32, u64),
    SystemCall,
    /// It did not stop in time.
    Endless,
    /// The process was killed.
    Killed,
}
