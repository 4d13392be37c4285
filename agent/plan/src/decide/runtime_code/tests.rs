#![allow(clippy::unwrap_used)]

use super::*;
use crate::testing::{TEXT, image};
use gprofinject_image::ElfType;

/// `call 1f; ret` and padding; `1: jmp [rip+0x100]` and what follows the jump.
fn refused(behind: &[u8], change: impl FnOnce(&mut Image)) -> Vec<usize> {
    let caller = [0xe8, 0x03, 0, 0, 0, 0xc3, 0x90, 0x90];
    let bytes = [&caller[..], &[0xff, 0x25, 0, 1, 0, 0], behind].concat();
    let mut image = image(ElfType::Dyn, TEXT, &bytes, &[caller.len(), bytes.len() - caller.len()]);
    for f in image.functions.iter_mut() {
        f.frame = None;
    }
    change(&mut image);
    let flow = Flow::of(&image, true);
    let mut found: Vec<usize> = parts(&image, &flow).into_keys().collect();
    found.sort_unstable();
    found
}

#[test]
fn a_jump_with_data_behind_it_is_a_stub_of_a_runtime() {
    let data = [0x15, 0x98, 0x02, 0x00];
    assert_eq!(refused(&data, |_| ()), [0, 1]);
    // Code with frame descriptions calls the stub: it is the program's own.
    assert_eq!(refused(&data, |image| image.functions[0].frame = Some(true)), []);
    // Padding of each kind.
    for padding in [[0x90; 4], [0xcc; 4], [0; 4], [0x0f, 0x0b, 0xcc, 0xcc], [0x0f, 0x1f, 0x40, 0x00]] {
        assert_eq!(refused(&padding, |_| ()), [], "{padding:x?}");
    }
}

#[test]
fn files_with_the_runtime_of_net() {
    let mut image = image(ElfType::Dyn, TEXT, &[0xc3], &[1]);
    image.functions[0].frame = Some(true);
    image.facts.exports_functions = true;
    for (runtime, role, is) in [
        (Some(NET), Role::Library, true),
        (Some(NET), Role::Program, true),
        (Some("V8"), Role::Library, false),
        (None, Role::Library, false),
    ] {
        image.facts.runtime = runtime.map(Into::into);
        assert_eq!(reader(&image, role).is_some(), is, "{runtime:?}");
    }
}

#[test]
fn a_library_that_only_a_runtime_can_enter() {
    let bytes = [0xc3];
    let mut image = image(ElfType::Dyn, TEXT, &bytes, &[1]);
    image.functions[0].frame = None;
    assert!(reader(&image, Role::Library).is_some());
    assert!(reader(&image, Role::Program).is_none());
    let mut with = |change: fn(&mut Image)| {
        change(&mut image);
        let is = reader(&image, Role::Library).is_some();
        image.facts = Default::default();
        image.functions[0].frame = None;
        is
    };
    assert!(!with(|image| image.facts.exports_functions = true));
    assert!(!with(|image| image.facts.has_constructors = true));
    assert!(!with(|image| image.functions[0].frame = Some(true)));
    assert!(with(|image| {
        image.functions[0].frame = Some(true);
        image.facts.exports_code_as_data = true;
    }));
}
