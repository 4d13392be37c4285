// What libgcc's unwinder asks glibc for, as a library for programs with musl.
#define _GNU_SOURCE
#include <link.h>
#include <stdint.h>

// glibc's struct dl_find_object (bits/dl_find_object.h), and the address that is looked up.
struct object {
    unsigned long long flags;
    void *start, *end;
    struct link_map *map;
    void *eh_frame;
    unsigned long long reserved[7];
};
struct search {
    uintptr_t address;
    struct object *found;
};

static int look(struct dl_phdr_info *info, size_t size, void *argument) {
    struct search *search = argument;
    int is_here = 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[i];
        uintptr_t start = info->dlpi_addr + header->p_vaddr, end = start + header->p_memsz;
        if (header->p_type == PT_LOAD && search->address >= start && search->address < end) {
            search->found->start = (void *)start;
            search->found->end = (void *)end;
            is_here = 1;
        }
        if (header->p_type == PT_GNU_EH_FRAME) search->found->eh_frame = (void *)start;
    }
    return is_here && search->found->eh_frame;
}

int _dl_find_object(void *address, struct object *found) {
    struct search search = {(uintptr_t)address, found};
    return dl_iterate_phdr(look, &search) ? 0 : -1;
}
