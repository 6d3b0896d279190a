package drivercopies

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"io"
)

// Bounds of what is read of a library, which may be crafted by the image's author.
const (
	maxDynamicBytes = 64 << 10
	maxSONAMEBytes  = 256
)

// librarySONAME returns the SONAME of a library as the loader sees it, or "" for a file that is not a library. It reads the
// program headers, as the loader does; the file need not have sections.
func librarySONAME(file io.ReaderAt) string {
	header := make([]byte, binary.Size(elf.Header64{}))
	if _, err := file.ReadAt(header, 0); err != nil {
		return ""
	}
	offset, links := 40, header[58:64] // e_shoff; e_shentsize, e_shnum, e_shstrndx
	if elf.Class(header[elf.EI_CLASS]) == elf.ELFCLASS32 {
		offset, links = 32, header[46:52]
		clear(header[offset : offset+4])
	} else {
		clear(header[offset : offset+8])
	}
	clear(links)
	library, err := elf.NewFile(withHeader{header, file})
	if err != nil {
		return ""
	}
	defer library.Close()
	dynamic := dynamicEntries(library)
	strings, hasStrings := dynamic[elf.DT_STRTAB]
	name, hasName := dynamic[elf.DT_SONAME]
	if !hasStrings || !hasName {
		return ""
	}
	text, _, ended := bytes.Cut(loaded(library, strings+name, maxSONAMEBytes), []byte{0})
	if !ended {
		return ""
	}
	return string(text)
}

// withHeader reads a file whose first bytes are replaced.
type withHeader struct {
	header []byte
	file   io.ReaderAt
}

func (w withHeader) ReadAt(into []byte, at int64) (int, error) {
	n, err := w.file.ReadAt(into, at)
	if at < int64(len(w.header)) {
		copy(into[:n], w.header[at:])
	}
	return n, err
}

// dynamicEntries reads a library's dynamic section. If there are several sections, or several entries with one tag, the last
// one counts, as for the loader.
func dynamicEntries(library *elf.File) map[elf.DynTag]uint64 {
	var address uint64
	for _, part := range library.Progs {
		if part.Type == elf.PT_DYNAMIC {
			address = part.Vaddr
		}
	}
	content := loaded(library, address, maxDynamicBytes)
	entries := map[elf.DynTag]uint64{}
	if library.Class == elf.ELFCLASS32 {
		for ; len(content) >= 8; content = content[8:] {
			tag := elf.DynTag(library.ByteOrder.Uint32(content))
			if tag == elf.DT_NULL {
				break
			}
			entries[tag] = uint64(library.ByteOrder.Uint32(content[4:]))
		}
		return entries
	}
	for ; len(content) >= 16; content = content[16:] {
		tag := elf.DynTag(library.ByteOrder.Uint64(content))
		if tag == elf.DT_NULL {
			break
		}
		entries[tag] = library.ByteOrder.Uint64(content[8:])
	}
	return entries
}

// loaded returns the part of the file that is mapped at an address once the library is loaded, at most maxBytes. Segments
// that are mapped later hide earlier ones.
func loaded(library *elf.File, address uint64, maxBytes int64) []byte {
	var in *elf.Prog
	for _, part := range library.Progs {
		if part.Type == elf.PT_LOAD && address >= part.Vaddr && address-part.Vaddr < part.Filesz {
			in = part
		}
	}
	if in == nil {
		return nil
	}
	inside := address - in.Vaddr
	content, _ := io.ReadAll(io.NewSectionReader(in, int64(inside), min(int64(in.Filesz-inside), maxBytes)))
	return content
}
