//! The facts that readelf prints about a program.

use crate::build::run;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

pub(crate) struct Symbol {
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) kind: String,
    pub(crate) name: String,
}

fn hex(text: &str) -> u64 {
    u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap()
}

fn readelf(option: &str, program: &Path) -> String {
    run("readelf", &[option, program.to_str().unwrap()])
}

/// Returns the numbers of the executable sections, except those of the PLT.
fn code_sections(program: &Path) -> BTreeSet<String> {
    let mut sections = BTreeSet::new();
    for line in readelf("-SW", program).lines() {
        // [16] .text PROGBITS 0000000000001060 001060 000135 00 AX 0 0 16
        let Some((number, rest)) = line.trim().strip_prefix('[').and_then(|line| line.split_once(']')) else {
            continue;
        };
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let executable = fields.get(6).is_some_and(|flags| flags.contains('X'));
        if executable && !fields[0].contains("plt") {
            sections.insert(number.trim().to_owned());
        }
    }
    sections
}

/// Returns the functions of .symtab, or those of .dynsym if there is no .symtab.
pub(crate) fn functions(program: &Path) -> Vec<Symbol> {
    let code = code_sections(program);
    let mut tables: BTreeMap<String, Vec<Symbol>> = BTreeMap::new();
    let mut table = String::new();
    for line in readelf("-sW", program).lines() {
        if let Some(rest) = line.strip_prefix("Symbol table '") {
            table = rest.split('\'').next().unwrap().to_owned();
        }
        // Num: Value Size Type Bind Vis Ndx Name
        let fields: Vec<&str> = line.split_whitespace().collect();
        if fields.len() < 8 || !matches!(fields[3], "FUNC" | "IFUNC") || !code.contains(fields[6]) {
            continue;
        }
        let size = fields[2].parse().unwrap_or_else(|_| hex(fields[2]));
        let [kind, name] = [3, 7].map(|field| fields[field].to_owned());
        // readelf prints a version after names of .dynsym, and sometimes after names of .symtab.
        let name = if table == ".dynsym" { name.split('@').next().unwrap().to_owned() } else { name };
        tables.entry(table.clone()).or_default().push(Symbol { address: hex(fields[1]), size, kind, name });
    }
    tables.remove(".symtab").or_else(|| tables.remove(".dynsym")).unwrap_or_default()
}

/// Returns, for the start address of each frame description, whether its first row says CFA = rsp + 8. The
/// value is `None` if the description adds no rules to those of its CIE, so that readelf prints no row.
pub(crate) fn frames(program: &Path) -> BTreeMap<u64, Option<bool>> {
    let mut frames = BTreeMap::new();
    let mut start = None;
    for line in readelf("--debug-dump=frames-interp", program).lines() {
        // 00000030 0000000000000014 00000000 FDE cie=00000000 pc=0000000000001060..0000000000001082
        //    LOC           CFA      ra
        // 0000000000001060 rsp+8    u
        if let Some((_, pc)) = line.split_once(" pc=") {
            let (from, to) = pc.split_once("..").unwrap();
            start = Some(hex(from)).filter(|&from| from < hex(to.trim()));
            frames.extend(start.map(|from| (from, None)));
        } else if let Some(from) = start {
            let fields: Vec<&str> = line.split_whitespace().collect();
            if fields.first().and_then(|field| u64::from_str_radix(field, 16).ok()) == Some(from) {
                frames.insert(from, Some(fields[1] == "rsp+8"));
                start = None;
            }
        }
    }
    frames
}

/// Returns the addends of relative relocations.
pub(crate) fn relative_addends(program: &Path) -> BTreeSet<u64> {
    let listing = readelf("-rW", program);
    let lines = listing.lines().filter(|line| line.contains("R_X86_64_RELATIVE"));
    lines.map(|line| hex(line.split_whitespace().last().unwrap())).collect()
}

pub(crate) fn build_id(program: &Path) -> Option<String> {
    let listing = readelf("-nW", program);
    Some(listing.split_once("Build ID: ")?.1.split_whitespace().next()?.to_owned())
}
