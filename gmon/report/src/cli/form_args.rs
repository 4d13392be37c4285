//! The options for what a gmon.out file does not say: its address width, byte order and form of block
//! records.

use clap::ValueEnum;
use gmon::{Program, ReadOptions};

/// What the user may know better than the file says.
#[derive(Clone, Copy, Default, clap::Args)]
pub(crate) struct FormArgs {
    /// Address width [default: the one that fits the file]
    #[arg(long, value_name = "BITS")]
    width: Option<Width>,
    /// Byte order [default: by the file's version number]
    #[arg(long, value_name = "ORDER")]
    endian: Option<Endian>,
    /// Form of basic-block records [default: the one that fits the file]
    #[arg(long, value_name = "FORM")]
    block_form: Option<Blocks>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Width {
    #[value(name = "32")]
    Bits32,
    #[value(name = "64")]
    Bits64,
}

#[derive(Clone, Copy, ValueEnum)]
enum Endian {
    Little,
    Big,
}

#[derive(Clone, Copy, ValueEnum)]
enum Blocks {
    /// A 32-bit number of blocks
    Gprof,
    /// A 64-bit number of blocks
    Glibc,
}

impl FormArgs {
    /// Returns the options as typed.
    pub(crate) fn options(&self) -> ReadOptions {
        ReadOptions {
            width: self.width.map(|width| match width {
                Width::Bits32 => gmon::Width::Bits32,
                Width::Bits64 => gmon::Width::Bits64,
            }),
            endian: self.endian.map(|endian| match endian {
                Endian::Little => gmon::Endian::Little,
                Endian::Big => gmon::Endian::Big,
            }),
            block_form: self.block_form.map(|blocks| match blocks {
                Blocks::Gprof => gmon::BlockForm::Gprof,
                Blocks::Glibc => gmon::BlockForm::Glibc,
            }),
        }
    }

    /// Returns the options as typed. If the file leaves the width open, the program decides.
    pub(crate) fn resolve(&self, bytes: &[u8], program: Option<&Program>) -> ReadOptions {
        let options = self.options();
        match (program, options.read(bytes)) {
            (Some(program), Ok(reading)) if reading.ambiguous_width || reading.records == 0 => {
                ReadOptions { width: options.width.or(Some(program.format.width)), ..options }
            }
            _ => options,
        }
    }
}
