use gprofinject_image::signatures::*;
use std::collections::BTreeMap;
fn show(ty: &Type) -> String {
    match &ty.shape {
        Shape::Struct(s) => format!(
            "struct {}{}{{{}}}",
            s.name.as_deref().unwrap_or("?"),
            ty.size,
            s.fields
                .iter()
                .map(|f| format!("{}@{}:{}", f.name.as_deref().unwrap_or("-"), f.offset, short(&f.ty)))
                .collect::<Vec<_>>()
                .join(", ")
        ),
        _ => short(ty),
    }
}
fn short(ty: &Type) -> String {
    match &ty.shape {
        Shape::Struct(s) => format!("struct {}", s.name.as_deref().unwrap_or("?")),
        Shape::Enum(e) => format!("enum {}[{}]", e.name.as_deref().unwrap_or("?"), e.variants.len()),
        Shape::Array { element, count } => format!("{}[{count}]", short(element)),
        other => format!("{other:?}{}", ty.size),
    }
}
fn main() {
    let path = std::env::args().nth(1).unwrap();
    let only = std::env::args().nth(2);
    let start = std::time::Instant::now();
    let bytes = std::fs::read(&path).unwrap();
    let debug = (!DebugInfo::is_in(&bytes))
        .then(|| {
            gprofinject_image::debug::debug_files(path.as_ref(), &bytes).find(|f| DebugInfo::is_in(&f.bytes))
        })
        .flatten();
    let of = debug.as_ref().map_or(&bytes, |f| &f.bytes);
    let info = DebugInfo::read(of).unwrap();
    eprintln!("read {:?}", start.elapsed());
    let exported = Exported::read([&bytes[..], of]);
    let mut s = Signatures::new(&info, exported);
    eprintln!("{} functions, index {:?}", s.count(), start.elapsed());
    let file = object::File::parse(&**of).unwrap();
    let mut names: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    use object::{Object, ObjectSymbol};
    for sym in file.symbols().chain(file.dynamic_symbols()) {
        if sym.kind() == object::SymbolKind::Text {
            names.entry(sym.address()).or_default().push(sym.name().unwrap_or("").to_owned());
        }
    }
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for at in s.addresses().collect::<Vec<_>>() {
        let n = names.get(&at).cloned().unwrap_or_default();
        let sig = s.of(at, n.iter().map(|n| n.as_str()));
        match &sig {
            Ok(sig) => {
                *counts.entry(format!("ok rest {:?}", sig.rest)).or_default() += 1;
            }
            Err(e) => *counts.entry(format!("{e:?}")).or_default() += 1,
        }
        let name = n.first().cloned().unwrap_or_default();
        if only.as_deref().is_none_or(|o| name.contains(o)) && only.as_deref() != Some("-") {
            match sig {
                Err(e) => println!("{at:x} {name}: {e:?}"),
                Ok(sig) => println!(
                    "{at:x} {name}({}){} -> {}",
                    sig.parameters
                        .iter()
                        .map(|p| format!(
                            "{}: {} {:?}",
                            p.name.as_deref().unwrap_or("_"),
                            show(&p.value.ty),
                            p.value.place
                        ))
                        .collect::<Vec<_>>()
                        .join(", "),
                    sig.rest.map_or(String::new(), |r| format!(" {r:?}")),
                    sig.result.map_or("-".into(), |v| format!("{} {:?}", show(&v.ty), v.place))
                ),
            }
        }
    }
    eprintln!("{counts:#?} total {:?}", start.elapsed());
    eprintln!(
        "{}",
        std::fs::read_to_string("/proc/self/status")
            .unwrap()
            .lines()
            .find(|l| l.starts_with("VmHWM"))
            .unwrap()
    );
}
