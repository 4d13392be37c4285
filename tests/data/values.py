# What gdb knows of the values of calls, as dictionaries: "kind" says what a value is, and the other keys what is in it. Used by
# arguments.py.
import re
import struct

import gdb

# The bytes of a string that are read: more than a trace keeps.
TEXT = 200
# How deep structures in each other are followed.
DEPTH = 7
# The elements of an array that are read.
ELEMENTS = 17
# How many values in a structure are read.
PARTS = 300
room = [PARTS]
# Whether types have special functions, by their names.
special = {}

UNKNOWN = {"kind": "unknown"}
NUMBERS = (gdb.TYPE_CODE_INT, gdb.TYPE_CODE_CHAR, gdb.TYPE_CODE_ENUM, gdb.TYPE_CODE_BOOL)
POINTERS = (gdb.TYPE_CODE_PTR, gdb.TYPE_CODE_REF, gdb.TYPE_CODE_RVALUE_REF)


def bytes_at(address, length):
    """Returns the bytes at an address, as many of them as can be read, or None if there are none."""
    inferior = gdb.selected_inferior()
    try:
        return bytes(inferior.read_memory(address, length))
    except gdb.error:
        pass
    # Up to the end of the page.
    rest = min(length, 4096 - address % 4096)
    try:
        return bytes(inferior.read_memory(address, rest)) if rest > 0 else b""
    except gdb.error:
        return None


def is_string(ty):
    """Whether a type is libstdc++'s std::string."""
    name = ty.unqualified().strip_typedefs().name or ""
    return name.startswith("std::__cxx11::basic_string<char,")


def text_of_string(value):
    """Returns the contents of a std::string."""
    length = int(value["_M_string_length"])
    return bytes_at(int(value["_M_dataplus"]["_M_p"]), min(length, TEXT)) if length else b""


def is_view(ty):
    name = ty.unqualified().strip_typedefs().name or ""
    return name.startswith("std::basic_string_view<char,") or name in ("&str", "&mut str")


def text_of_view(value):
    address, length = ("_M_str", "_M_len") if "_M_len" in [f.name for f in value.type.fields()] else ("data_ptr", "length")
    length = int(value[length])
    return bytes_at(int(value[address]), min(length, TEXT)) if length else b""


def integer(value, size):
    """Returns an integer of any size."""
    if size <= 8:
        return int(value)
    raw = value.bytes if hasattr(value, "bytes") else None
    if raw is None:
        return int(value.format_string(format="x"), 16)
    return int.from_bytes(raw, "little", signed=False)


def known(value, depth=0):
    """Returns what gdb knows of a value."""
    room[0] = PARTS if depth == 0 else room[0] - 1
    if room[0] < 0:
        return {"kind": "other", "text": "beyond the limit"}
    try:
        return known_or_error(value, depth)
    except (gdb.error, RuntimeError, OverflowError, ValueError, UnicodeDecodeError) as error:
        return {"kind": "unknown", "why": str(error)}


def known_or_error(value, depth):
    ty = value.type.strip_typedefs().unqualified()
    code = ty.code
    if code in POINTERS:
        return pointer(value, ty)
    if code in (gdb.TYPE_CODE_STRUCT, gdb.TYPE_CODE_UNION):
        return structure(value, ty, depth)
    if value.is_optimized_out:
        return UNKNOWN
    if code == gdb.TYPE_CODE_ENUM:
        return {"kind": "enum", "text": str(value), "value": int(value), "size": ty.sizeof}
    if code == gdb.TYPE_CODE_BOOL:
        return {"kind": "bool", "value": int(value)}
    if code in NUMBERS:
        return {"kind": "integer", "value": integer(value, ty.sizeof), "size": ty.sizeof}
    if code == gdb.TYPE_CODE_FLT:
        return {"kind": "float", "value": float(value), "size": ty.sizeof}
    if code == gdb.TYPE_CODE_ARRAY and depth < DEPTH :
        low, high = ty.range()
        elements = [known(value[index], depth + 1) for index in range(low, min(high, low + ELEMENTS) + 1)]
        return {"kind": "array", "elements": elements}
    return {"kind": "other", "text": str(ty)}


def pointer(value, ty):
    if value.is_optimized_out:
        return UNKNOWN
    if ty.code == gdb.TYPE_CODE_PTR:
        address = int(value)
    else:
        address = int(value.referenced_value().address)
    found = {"kind": "pointer", "address": address}
    target = ty.target().strip_typedefs().unqualified()
    if target.sizeof == 1 and target.name in ("char", "char8_t") and address:
        found["text"] = bytes_at(address, TEXT)
        if found["text"] is not None:
            found["text"] = found["text"].split(b"\0")[0]
    elif is_string(target) and address:
        try:
            found["text"] = text_of_string(gdb.Value(address).cast(target.pointer()).dereference())
        except gdb.error:
            found["text"] = None
    return found


def structure(value, ty, depth):
    if is_string(ty):
        return {"kind": "text", "text": text_of_string(value)}
    if is_view(ty):
        return {"kind": "text", "text": text_of_view(value)}
    if depth >= DEPTH:
        return {"kind": "other", "text": str(ty)}
    fields = []
    for field in ty.fields():
        if hasattr(field, "bitpos"):
            name = "" if field.is_base_class or not field.name else field.name
            fields.append((name, known(value[field], depth + 1), bool(field.bitsize)))
    if not fields and value.is_optimized_out:
        return UNKNOWN
    if not any(name or field["kind"] != "other" for name, field, _ in fields):
        return {"kind": "other", "text": str(ty)}
    if all(field[1]["kind"] == "unknown" for field in fields):
        return UNKNOWN
    return {"kind": "structure", "fields": fields, "type": str(ty)}


def leaves(ty, offset, found):
    """Adds the numbers in a type: (offset, size, whether it is a floating-point number)."""
    ty = ty.strip_typedefs().unqualified()
    if ty.code in (gdb.TYPE_CODE_STRUCT, gdb.TYPE_CODE_UNION):
        for field in ty.fields():
            if hasattr(field, "bitpos"):
                leaves(field.type, offset + field.bitpos // 8, found)
    elif ty.code == gdb.TYPE_CODE_ARRAY:
        size = ty.target().sizeof
        for index in range(ty.sizeof // size if size else 0):
            leaves(ty.target(), offset + index * size, found)
    else:
        found.append((offset, ty.sizeof, ty.code == gdb.TYPE_CODE_FLT))


def declares_special(ty):
    """Whether a class, or what it contains, declares a destructor, a constructor from another object, or virtual functions."""
    ty = ty.strip_typedefs().unqualified()
    if ty.code == gdb.TYPE_CODE_ARRAY:
        return declares_special(ty.target())
    if ty.code not in (gdb.TYPE_CODE_STRUCT, gdb.TYPE_CODE_UNION):
        return False
    name = str(ty)
    if name not in special:
        special[name] = False
        own = (ty.name or "").split("<")[0].split("::")[-1]
        text = gdb.execute("ptype '%s'" % ty.name, to_string=True) if ty.name else ""
        copy = re.compile(r"\s*%s\((const )?([\w:]*::)?%s(<.*>)?( const)? ?&\)" % (re.escape(own), re.escape(own)))
        declared = "~" in text or "_vptr" in text or any(copy.match(line) for line in text.splitlines())
        fields = [field.type for field in ty.fields() if hasattr(field, "bitpos")]
        special[name] = declared or any(declares_special(field) for field in fields)
    return special[name]


def result(ty, first):
    """Returns what a function with a result of this type has returned, when it has just returned, or None.

    `first` is what was in rdi when it was called. A class that may not be copied like bytes is returned in memory, the address of
    which has been in rdi and is in rax. gdb does not know which of its functions are the usual ones, so this tells both apart.
    """
    ty = ty.strip_typedefs().unqualified()
    if ty.code == gdb.TYPE_CODE_VOID:
        return None
    word = gdb.lookup_type("unsigned long")
    if ty.code == gdb.TYPE_CODE_FLT:
        if ty.sizeof > 8:
            return known(gdb.parse_and_eval("$st0"))
        if ty.sizeof == 2:
            # gdb 13 has no lanes of this type.
            bits = int(gdb.parse_and_eval("$xmm0.v8_int16[0]")) & 0xFFFF
            return {"kind": "float", "value": struct.unpack("<e", struct.pack("<H", bits))[0], "size": 2}
        lane = "v4_float" if ty.sizeof == 4 else "v2_double"
        return known(gdb.parse_and_eval("$xmm0.%s[0]" % lane))
    rax = int(gdb.parse_and_eval("(unsigned long)$rax"))
    rdx = int(gdb.parse_and_eval("(unsigned long)$rdx"))

    def in_memory():
        return known(gdb.Value(rax).cast(word).cast(ty.pointer()).dereference())

    def of_bytes(raw):
        return known(gdb.Value(raw[: ty.sizeof], ty))

    if ty.code not in (gdb.TYPE_CODE_STRUCT, gdb.TYPE_CODE_UNION, gdb.TYPE_CODE_ARRAY):
        if ty.code in (gdb.TYPE_CODE_REF, gdb.TYPE_CODE_RVALUE_REF):
            return pointer(gdb.Value(rax).cast(word).cast(ty.target().pointer()), ty.target().pointer())
        return of_bytes(rax.to_bytes(8, "little") + rdx.to_bytes(8, "little"))
    if ty.sizeof > 16 or is_string(ty):
        return in_memory()
    all_leaves = []
    leaves(ty, 0, all_leaves)
    integers, vectors = [rax, rdx], [0, 1]
    raw = b""
    for start in range(0, ty.sizeof, 8):
        inside = [is_float for at, size, is_float in all_leaves if at < start + 8 and start < at + size]
        if inside and all(inside):
            number = vectors.pop(0)
            value = int(gdb.parse_and_eval("(unsigned long)$xmm%d.v2_int64[0]" % number))
        else:
            value = integers.pop(0)
        raw += (value & (1 << 64) - 1).to_bytes(8, "little")
    return in_memory() if rax == first and declares_special(ty) else of_bytes(raw)
