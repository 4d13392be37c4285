//! Numbers and addresses in the encodings of exception tables and frame descriptions: LEB128, and `DW_EH_PE`
//! pointers (Linux Standard Base, section 10.5.1).

use gimli::constants as dwarf;

/// Reads DWARF's encoded numbers from the front of some bytes.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'d> {
    pub bytes: &'d [u8],
    /// The address of the first byte.
    pub address: u64,
    /// The address to which DW_EH_PE_funcrel is relative.
    pub function: u64,
}

impl<'d> Reader<'d> {
    /// Reads `N` bytes.
    pub fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.bytes.split_first_chunk::<N>()?;
        self.bytes = rest;
        self.address = self.address.wrapping_add(N as u64);
        Some(*taken)
    }

    /// Reads one byte.
    pub fn byte(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    /// Reads an unsigned LEB128 number.
    pub fn uleb(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    /// Reads a signed LEB128 number, as two's complement.
    pub fn sleb(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                // Bit 6 of the last byte is the sign.
                let sign = if byte & 0x40 != 0 && shift < 57 { u64::MAX << (shift + 7) } else { 0 };
                return Some(value | sign);
            }
        }
        None
    }

    /// Reads a number, and does not add the base to which it is relative.
    pub fn value(&mut self, encoding: dwarf::DwEhPe) -> Option<u64> {
        match encoding.format() {
            dwarf::DW_EH_PE_absptr | dwarf::DW_EH_PE_udata8 | dwarf::DW_EH_PE_sdata8 => {
                self.take().map(u64::from_le_bytes)
            }
            dwarf::DW_EH_PE_uleb128 => self.uleb(),
            dwarf::DW_EH_PE_sleb128 => self.sleb(),
            dwarf::DW_EH_PE_udata2 => self.take().map(|bytes| u16::from_le_bytes(bytes).into()),
            dwarf::DW_EH_PE_sdata2 => self.take().map(|bytes| i16::from_le_bytes(bytes) as u64),
            dwarf::DW_EH_PE_udata4 => self.take().map(|bytes| u32::from_le_bytes(bytes).into()),
            dwarf::DW_EH_PE_sdata4 => self.take().map(|bytes| i32::from_le_bytes(bytes) as u64),
            _ => None,
        }
    }

    /// Reads an address.
    pub fn pointer(&mut self, encoding: dwarf::DwEhPe) -> Option<u64> {
        let base = match encoding.application() {
            dwarf::DW_EH_PE_absptr => 0,
            dwarf::DW_EH_PE_pcrel => self.address,
            dwarf::DW_EH_PE_funcrel => self.function,
            _ => return None,
        };
        if encoding.is_indirect() {
            return None;
        }
        Some(base.wrapping_add(self.value(encoding)?))
    }
}
