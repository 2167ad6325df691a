// A program that nvcc linked with -cudart=static, the default, has its own copy of CUDA's runtime.
// Before the program starts, this file replaces the beginning of each function of that copy by a
// jump to the library's function of the same name. It finds the functions in the symbol table of
// the program's file, and of the libraries that the program loads at its start.

#define _GNU_SOURCE
#include <ctype.h>
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cuda.h"

// missing ends a program that calls a function that the library does not have.
static void missing(const char *name)
{
	fprintf(stderr, "emulate: the program calls %s, which is not emulated\n", name);
	exit(2);
}

#if defined(__x86_64__)
// jump writes code that jumps to a function. Unless argument is NULL, the code first makes it the
// function's first argument. jump returns the size of the code.
static size_t jump(unsigned char *to, const void *function, const void *argument)
{
	size_t n = 0;
	if (argument) {
		memcpy(to, "\x48\xbf", 2); // mov rdi, argument
		memcpy(to + 2, &argument, 8);
		n = 10;
	}
	memcpy(to + n, "\xff\x25\0\0\0\0", 6); // jmp [rip]
	memcpy(to + n + 6, &function, 8);
	return n + 14;
}
#elif defined(__aarch64__)
static size_t jump(unsigned char *to, const void *function, const void *argument)
{
	uint32_t nop = 0xd503201f, code[4] = {0x58000090, argument ? 0x580000a0 : nop, 0xd61f0200, nop}; // ldr x16, .+16; ldr x0, .+20; br x16
	memcpy(to, code, 16);
	memcpy(to + 16, &function, 8);
	memcpy(to + 24, &argument, 8);
	return 32;
}
#endif

// own is this library's handle for dlsym.
static void *own;

uintptr_t own_symbol(const char *name) { return own ? (uintptr_t)dlsym(own, name) : 0; }

// replace redirects one function of `room` bytes. A function that is too short for a jump stays.
static void replace(unsigned char *function, size_t room, const char *name)
{
	unsigned char code[64];
	void *by = dlsym(own, name);
	size_t n = by ? jump(code, by, NULL) : jump(code, (const void *)missing, strdup(name));
	if (n > room || by == function)
		return;
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)function & ~(page - 1), to = (uintptr_t)function + n;
	if (mprotect((void *)from, to - from, PROT_READ | PROT_WRITE | PROT_EXEC) != 0) {
		perror("emulate: the program's code cannot be changed");
		exit(2);
	}
	memcpy(function, code, n);
	mprotect((void *)from, to - from, PROT_READ | PROT_EXEC);
	__builtin___clear_cache((char *)function, (char *)function + n);
}

// is_runtime reports whether a function of CUDA's runtime can have the name.
static int is_runtime(const char *name)
{
	if (strncmp(name, "__cuda", 6) == 0)
		return 1;
	return strncmp(name, "cuda", 4) == 0 && isupper((unsigned char)name[4]);
}

// scan redirects the functions of one file that is loaded at a base address.
static void scan(const unsigned char *file, size_t size, uintptr_t base)
{
	const Elf64_Ehdr *h = (const Elf64_Ehdr *)file;
	if (size < sizeof *h || memcmp(file, ELFMAG, SELFMAG) != 0 || h->e_ident[EI_CLASS] != ELFCLASS64 || h->e_shoff > size || h->e_shnum > (size - h->e_shoff) / sizeof(Elf64_Shdr))
		return;
	const Elf64_Shdr *sections = (const Elf64_Shdr *)(file + h->e_shoff);
	for (int i = 0; i < h->e_shnum; i++) {
		const Elf64_Shdr *s = &sections[i];
		if (s->sh_type != SHT_SYMTAB || s->sh_link >= h->e_shnum || s->sh_offset > size || s->sh_size > size - s->sh_offset)
			continue;
		const Elf64_Shdr *t = &sections[s->sh_link];
		if (t->sh_offset > size || t->sh_size > size - t->sh_offset)
			continue;
		const char *names = (const char *)(file + t->sh_offset);
		const Elf64_Sym *list = (const Elf64_Sym *)(file + s->sh_offset);
		size_t count = s->sh_size / sizeof *list, registers = 0;
		for (size_t k = 0; k < count; k++)
			registers += list[k].st_name < t->sh_size && list[k].st_size > 0 && strcmp(names + list[k].st_name, "__cudaRegisterFatBinary") == 0;
		for (size_t k = 0; registers && k < count; k++) {
			const Elf64_Sym *y = &list[k];
			if (ELF64_ST_TYPE(y->st_info) == STT_FUNC && y->st_shndx != SHN_UNDEF && y->st_name < t->sh_size && is_runtime(names + y->st_name))
				replace((unsigned char *)(base + y->st_value), y->st_size, names + y->st_name);
		}
	}
}

static int visit(struct dl_phdr_info *info, size_t bytes, void *data)
{
	const char *self = data, *name = info->dlpi_name[0] ? info->dlpi_name : "/proc/self/exe";
	struct stat st;
	int fd = strcmp(name, self) ? open(name, O_RDONLY | O_CLOEXEC) : -1;
	(void)bytes;
	if (fd < 0)
		return 0;
	if (fstat(fd, &st) == 0 && st.st_size > 0) {
		void *file = mmap(NULL, st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
		if (file != MAP_FAILED) {
			scan(file, st.st_size, info->dlpi_addr);
			munmap(file, st.st_size);
		}
	}
	close(fd);
	return 0;
}

__attribute__((constructor)) static void redirect(void)
{
	Dl_info self;
	if (!dladdr((void *)redirect, &self) || !(own = dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD)))
		return;
	dl_iterate_phdr(visit, (void *)self.dli_fname);
}
