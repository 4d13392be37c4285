//! Makes ELF programs of given functions, without a compiler.

/// One function, and the bytes after it.
pub struct Piece {
    pub code: Vec<u8>,
    /// The bytes up to the next function.
    pub padding: Vec<u8>,
    /// The size in its symbol; `None` if it has no symbol.
    pub size: Option<u64>,
}

pub struct Program {
    pub position_independent: bool,
    /// The functions. The first one is the entry point.
    pub pieces: Vec<Piece>,
    /// The words of data: the addresses of functions, by their numbers, each with an offset from the
    /// function's start.
    pub pointers: Vec<(usize, u64)>,
}

const PAGE: u64 = 0x1000;
const HEADER: u64 = 64;
const SEGMENT: u64 = 56;
const SYMBOL: usize = 24;
/// The address at which an ET_EXEC begins.
const BASE: u64 = 0x40_0000;

impl Program {
    pub fn base(&self) -> u64 {
        if self.position_independent { 0 } else { BASE }
    }

    /// Returns the address of the first function.
    pub fn text(&self) -> u64 {
        self.base() + PAGE
    }

    /// Returns the addresses of the functions.
    pub fn addresses(&self) -> Vec<u64> {
        let lens = self.pieces.iter().map(|p| (p.code.len() + p.padding.len()) as u64);
        lens.scan(self.text(), |at, len| Some(std::mem::replace(at, *at + len))).collect()
    }

    /// Returns the bytes of the file.
    pub fn file(&self) -> Vec<u8> {
        let base = self.base();
        let addresses = self.addresses();
        let mut text = Vec::new();
        for piece in &self.pieces {
            text.extend(&piece.code);
            text.extend(&piece.padding);
        }
        let data: Vec<u8> =
            self.pointers.iter().flat_map(|&(n, by)| (addresses[n] + by).to_le_bytes()).collect();
        let mut symbols = vec![0; SYMBOL];
        let mut names = vec![0];
        for (n, (piece, &address)) in self.pieces.iter().zip(&addresses).enumerate() {
            let Some(size) = piece.size else { continue };
            half(&mut symbols, names.len() as u32);
            // STT_FUNC, STB_GLOBAL, in section 1.
            symbols.extend([0x12, 0, 1, 0]);
            word(&mut symbols, address);
            word(&mut symbols, size);
            names.extend(format!("f{n}\0").bytes());
        }
        let text_at = PAGE;
        let data_at = (text_at + text.len() as u64).next_multiple_of(PAGE);
        let symbols_at = (data_at + data.len() as u64).next_multiple_of(8);
        let names_at = symbols_at + symbols.len() as u64;
        let section_names = b"\0.text\0.data\0.symtab\0.strtab\0.interp\0";
        let section_names_at = names_at + names.len() as u64;
        let interpreter = b"/lib64/ld-linux-x86-64.so.2\0";
        let interpreter_at = HEADER + 3 * SEGMENT;
        let sections_at = (section_names_at + section_names.len() as u64).next_multiple_of(8);

        let mut out = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
        out.extend([if self.position_independent { 3 } else { 2 }, 0, 62, 0, 1, 0, 0, 0]);
        for value in [self.text(), HEADER, sections_at] {
            word(&mut out, value);
        }
        // No flags; the sizes and counts of headers; the index of the section names.
        out.extend([0, 0, 0, 0, 64, 0, 56, 0, 3, 0, 64, 0, 6, 0, 4, 0]);
        let segments = [
            (3, 4, interpreter_at, interpreter.len() as u64, 1),
            (1, 5, text_at, text.len() as u64, PAGE),
            (1, 6, data_at, data.len() as u64, PAGE),
        ];
        for (kind, flags, at, len, align) in segments {
            half(&mut out, kind);
            half(&mut out, flags);
            for value in [at, base + at, base + at, len, len, align] {
                word(&mut out, value);
            }
        }
        out.extend(interpreter);
        for (at, bytes) in [(text_at, &text), (data_at, &data), (symbols_at, &symbols), (names_at, &names)] {
            out.resize(at as usize, 0);
            out.extend(bytes);
        }
        out.extend(section_names);
        out.resize(sections_at as usize, 0);
        out.resize(sections_at as usize + 64, 0);
        // Name, kind, flags, address, offset, size, link, info, entry size.
        let sections = [
            (1, 1, 6, base + text_at, text_at, text.len(), 0, 0, 0),
            (7, 1, 3, base + data_at, data_at, data.len(), 0, 0, 0),
            (13, 2, 0, 0, symbols_at, symbols.len(), 5, 1, SYMBOL),
            (21, 3, 0, 0, section_names_at, section_names.len(), 0, 0, 0),
            (21, 3, 0, 0, names_at, names.len(), 0, 0, 0),
        ];
        for (name, kind, flags, address, offset, size, link, info, entry) in sections {
            half(&mut out, name);
            half(&mut out, kind);
            for value in [flags, address, offset, size as u64] {
                word(&mut out, value);
            }
            half(&mut out, link);
            half(&mut out, info);
            word(&mut out, 1);
            word(&mut out, entry as u64);
        }
        out
    }
}

fn half(out: &mut Vec<u8>, value: u32) {
    out.extend(value.to_le_bytes());
}

fn word(out: &mut Vec<u8>, value: u64) {
    out.extend(value.to_le_bytes());
}
