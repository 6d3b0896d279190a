package hooks

import (
	"bytes"
	"encoding/binary"
	"slices"

	"tranche.dev/tranche/runtime/rootfs"
	"tranche.dev/tranche/runtime/shadow"
)

// maxCacheBytes bounds the loader's cache. One of a desktop with everything has 300 KiB.
const maxCacheBytes = 4 << 20

// readLoaderCache lists the driver's libraries in the image's loader cache.
func readLoaderCache(root *rootfs.Root) ([]string, error) {
	const file = "/etc/ld.so.cache"
	content, err := root.ReadFile(file, maxCacheBytes)
	if rootfs.Unreachable(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return loaderCache(content), nil
}

// The loader's cache, as glibc writes it: maybe one in an old format, which holds the same, and then one in this. It
// has a header, entries, and strings that the entries point to, counted from the header. Byte order is the machine's.
const (
	cacheMagic        = "glibc-ld.so.cache1.1"
	cacheHeaderBytes  = 48 // magic, number of entries, bytes of strings, flags, extensions
	cacheEntryBytes   = 24 // flags, name, path, kernel version, hardware capabilities
	cachePathInEntry  = 8
	cacheCountInMagic = len(cacheMagic)
)

// loaderCache lists the paths of the driver's libraries that a cache holds. What is no cache, or is cut off, holds none,
// as for the loader. Entries may share their strings, so those that are nothing to us are not kept.
func loaderCache(content []byte) []string {
	start := bytes.Index(content, []byte(cacheMagic))
	if start < 0 || len(content)-start < cacheHeaderBytes {
		return nil
	}
	cache := content[start:]
	count := int64(binary.NativeEndian.Uint32(cache[cacheCountInMagic:]))
	if count > int64(len(cache)-cacheHeaderBytes)/cacheEntryBytes {
		return nil
	}
	var paths []string
	for i := range int(count) {
		entry := cache[cacheHeaderBytes+i*cacheEntryBytes:]
		offset := int64(binary.NativeEndian.Uint32(entry[cachePathInEntry:]))
		if offset >= int64(len(cache)) {
			continue
		}
		path := cache[offset:min(offset+maxPathBytes, int64(len(cache)))]
		path, _, ended := bytes.Cut(path, []byte{0})
		if ended && shadow.SONAME(string(path)) != "" {
			paths = append(paths, string(path))
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// maxPathBytes is the kernel's limit.
const maxPathBytes = 4096
