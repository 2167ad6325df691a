package devkit

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"sonicmoe/driver"
)

// machineCUDA is the ELF machine number of NVIDIA's GPUs, EM_CUDA.
const machineCUDA = 190

// CheckImage refuses what is not a whole ELF file for NVIDIA's GPUs, or not one
// for the architecture, such as "sm_90a"; "" means any. The error is an *driver.Error
// of the kind driver.ErrWrongImage. It says nothing about the instructions in the file.
func CheckImage(code []byte, arch string) error {
	wrong := func(format string, args ...any) error {
		return &driver.Error{Op: "check machine code", Text: fmt.Sprintf(format, args...), Kind: driver.ErrWrongImage}
	}
	f, err := openELF(code)
	if err != nil {
		return wrong("%d bytes that are no ELF file: %v", len(code), err)
	}
	if f.Machine != machineCUDA || f.Class != elf.ELFCLASS64 || f.Data != elf.ELFDATA2LSB {
		return wrong("an ELF file of %v, %v for machine %d, must be of 64 bits, little-endian, for %d (CUDA)", f.Class, f.Data, f.Machine, machineCUDA)
	}
	whole := func(offset, size uint64) bool {
		n := uint64(len(code))
		return offset <= n && size <= n-offset
	}
	for _, s := range f.Sections {
		if s.Type != elf.SHT_NOBITS && !whole(s.Offset, s.FileSize) {
			return wrong("cut off: section %s has %d bytes from byte %d on, the file ends at %d", s.Name, s.FileSize, s.Offset, len(code))
		}
	}
	for i, p := range f.Progs {
		if !whole(p.Off, p.Filesz) {
			return wrong("cut off: segment %d has %d bytes from byte %d on, the file ends at %d", i, p.Filesz, p.Off, len(code))
		}
	}
	if made := imageArch(f, code); arch != "" && made != arch && (f.ABIVersion < 8 || made != strings.TrimRight(arch, "af")) {
		return wrong("an image for %s, must be for %s", made, arch)
	}
	return nil
}

// openELF reads the headers of an ELF file. CUDA 12 writes its own version, such
// as 128 for 12.8, where every other ELF file has the format's, 1.
func openELF(code []byte) (*elf.File, error) {
	if len(code) < 64 {
		return nil, errors.New("shorter than an ELF header")
	}
	plain := bytes.Clone(code)
	binary.LittleEndian.PutUint32(plain[20:], 1) // e_version
	return elf.NewFile(bytes.NewReader(plain))
}

// imageArch reads the architecture from an image's flags.
//
// Assemblers up to 12.9 write ABI version 7 for Hopper: the chip in the lowest
// byte, and bit 11 for the suffix a. Version 8, of 12.9 for Blackwell and of all
// later ones, has the chip in the second byte and no such bit for Hopper: there
// the answer has no suffix.
func imageArch(f *elf.File, code []byte) string {
	flags := f.ByteOrder.Uint32(code[48:]) // e_flags
	if f.ABIVersion >= 8 {
		return "sm_" + strconv.Itoa(int(flags>>8&0xff))
	}
	arch := "sm_" + strconv.Itoa(int(flags&0xff))
	if flags&(1<<11) != 0 {
		arch += "a"
	}
	return arch
}
