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
	"sonicmoe/driver/gpu"
)

// machineCUDA is the ELF machine number of NVIDIA's GPUs, EM_CUDA.
const machineCUDA = 190

// CheckImage returns an error unless code is a complete ELF file for NVIDIA's GPUs and for the
// architecture arch, such as "sm_90a". If arch is "", any architecture is accepted. The error
// is a *driver.Error of kind gpu.ErrWrongImage. The instructions in the file are not checked.
func CheckImage(code []byte, arch string) error {
	wrong := func(format string, args ...any) error {
		return &driver.Error{Op: "check machine code", Text: fmt.Sprintf(format, args...), Kind: gpu.ErrWrongImage}
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

// openELF reads the headers of an ELF file. CUDA 12 writes its own version, such as 128 for
// 12.8, into a field that is 1 in every other ELF file.
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
// The place of the chip's number depends on the ABI version of the file. Assemblers up to 12.9
// write version 7 for Hopper: the chip is in the lowest byte, and bit 11 means the suffix a.
// 12.9 for Blackwell and all later assemblers write version 8: the chip is in the second byte.
// For Hopper no bit of version 8 means the suffix a, so the result has no suffix.
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
