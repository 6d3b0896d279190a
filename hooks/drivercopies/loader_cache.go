package drivercopies

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/tranche-gpu/tranche/runtime/rootfs"
)

// Bounds of the loader's cache. A large desktop system has one of 300 KiB.
const (
	maxCacheBytes     = 4 << 20
	maxCacheLibraries = 1000 // of the driver, and preloaded
)

// cacheFile is the path of glibc's loader cache.
const cacheFile = "/etc/ld.so.cache"

// cacheEntry is a library in the loader's cache: the name that programs load, and the file that they get.
type cacheEntry struct{ name, path string }

// readLoaderCache lists the libraries in the image's loader cache whose name or path is wanted.
func readLoaderCache(root *rootfs.Root, wanted func(name string) bool) ([]cacheEntry, error) {
	content, err := root.ReadFile(cacheFile, maxCacheBytes)
	if rootfs.Unreachable(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	libraries, err := loaderCache(content, wanted)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cacheFile, err)
	}
	return libraries, nil
}

// The loader's cache as glibc writes it (sysdeps/generic/dl-cache.h): a cache in the new format, or one in the old format
// that may be followed by one in the new. Each has a header, entries, and strings that the entries point to. Byte order is
// the machine's.
const (
	cacheMagicOld       = "ld.so-1.7.0"
	cacheHeaderBytesOld = 16 // magic, number of entries
	cacheCountOld       = 12
	cacheEntryBytesOld  = 12 // flags, name, path

	cacheMagic       = "glibc-ld.so.cache1.1"
	cacheHeaderBytes = 48 // magic, number of entries, bytes of strings, flags, extensions
	cacheCount       = len(cacheMagic)
	cacheEntryBytes  = 24 // flags, name, path, kernel version, hardware capabilities

	cacheNameInEntry = 4
	cachePathInEntry = 8
)

// Prefixes of the magic of any version.
const cacheAnyOld, cacheAny = "ld.so-", "glibc-ld.so.cache"

var errUnknownCache = errors.New("the loader cache has an unknown format, so the libraries that it names are unknown; have the " +
	"image's ldconfig write it with --format=new")

// loaderCache lists the libraries in a cache whose name or path is wanted. Content that is not a cache has none, as for the
// loader. It reads more than one loader would: both formats if there are two, since they are for loaders of different
// versions, and the existing part of a truncated cache, which some loaders read as well.
func loaderCache(content []byte, wanted func(name string) bool) ([]cacheEntry, error) {
	c := cacheReader{wanted: wanted, seen: map[cacheEntry]bool{}}
	switch {
	case startsWith(content, 0, cacheMagic):
		c.readNew(content)
	case startsWith(content, 0, cacheMagicOld):
		end := c.readOld(content)
		for _, alignment := range []int{4, 8} { // on 32-bit and 64-bit machines
			if at := (end + alignment - 1) &^ (alignment - 1); startsWith(content, at, cacheMagic) {
				c.readNew(content[at:])
			}
		}
	case startsWith(content, 0, cacheAnyOld), startsWith(content, 0, cacheAny):
		return nil, errUnknownCache
	}
	if len(c.libraries) > maxCacheLibraries {
		return nil, rootfs.ErrTooMuch
	}
	return c.libraries, nil
}

func startsWith(content []byte, at int, magic string) bool {
	return at <= len(content) && bytes.HasPrefix(content[at:], []byte(magic))
}

type cacheReader struct {
	wanted    func(name string) bool
	seen      map[cacheEntry]bool
	libraries []cacheEntry
}

func (c *cacheReader) readNew(cache []byte) {
	if len(cache) >= cacheHeaderBytes {
		count := binary.NativeEndian.Uint32(cache[cacheCount:])
		c.read(cache, cache[cacheHeaderBytes:], count, cacheEntryBytes)
	}
}

// readOld returns the offset at which the entries end, which string offsets are relative to.
func (c *cacheReader) readOld(cache []byte) (end int) {
	if len(cache) < cacheHeaderBytesOld {
		return len(cache)
	}
	count := binary.NativeEndian.Uint32(cache[cacheCountOld:])
	end = int(min(cacheHeaderBytesOld+int64(count)*cacheEntryBytesOld, int64(len(cache))))
	c.read(cache[end:], cache[cacheHeaderBytesOld:], count, cacheEntryBytesOld)
	return end
}

// read appends the wanted ones of count entries, whose string offsets are relative to texts. Entries may share their strings,
// so unwanted ones are not kept in memory.
func (c *cacheReader) read(texts, entries []byte, count uint32, entryBytes int) {
	for ; count > 0 && len(entries) >= entryBytes && len(c.libraries) <= maxCacheLibraries; count-- {
		name, path := textAt(texts, entries[cacheNameInEntry:]), textAt(texts, entries[cachePathInEntry:])
		entries = entries[entryBytes:]
		if len(path) == 0 || !c.wanted(string(name)) && !c.wanted(string(path)) {
			continue
		}
		library := cacheEntry{string(name), string(path)}
		if !c.seen[library] {
			c.seen[library] = true
			c.libraries = append(c.libraries, library)
		}
	}
}

// textAt returns the string that a field of an entry points to, or nil if there is none.
func textAt(texts, field []byte) []byte {
	offset := int64(binary.NativeEndian.Uint32(field))
	if offset >= int64(len(texts)) {
		return nil
	}
	text, _, ended := bytes.Cut(texts[offset:min(offset+maxPathBytes, int64(len(texts)))], []byte{0})
	if !ended {
		return nil
	}
	return text
}

// maxPathBytes is the kernel's limit for a path.
const maxPathBytes = 4096
