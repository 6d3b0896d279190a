package claim

import (
	"os"
	"slices"
	"syscall"
	"time"
)

// recordCache has the records that were read before, by the names of their files, so that only changed records are read. It
// is used under the ledger's lock.
type recordCache map[string]cachedRecord

type cachedRecord struct {
	stamp  fileStamp
	record *record
}

// fileStamp changes whenever a file's content changes or another file gets its name. Writers cannot prevent that, since the
// kernel sets the time of the last change (ctime).
type fileStamp struct {
	device, inode   uint64
	size            int64
	changed, edited syscall.Timespec
}

// settled is how long a file must be unchanged before it is cached. The times of file systems have a granularity of up to two
// seconds, and a second change within it would leave the same stamp.
const settled = 3 * time.Second

func stampOfFile(info os.FileInfo) (fileStamp, bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.Mode().IsRegular() {
		return fileStamp{}, false
	}
	return fileStamp{device: st.Dev, inode: st.Ino, size: st.Size, changed: st.Ctim, edited: st.Mtim}, true
}

// find returns the record of a file that has not changed since it was read.
func (s recordCache) find(name string, entry os.DirEntry) (cachedRecord, bool) {
	known, ok := s[name]
	if !ok {
		return cachedRecord{}, false
	}
	info, err := entry.Info()
	if err != nil {
		return cachedRecord{}, false
	}
	stamp, ok := stampOfFile(info)
	return known, ok && stamp == known.stamp
}

// settledAt reports whether the file was last changed long enough before a time.
func (f fileStamp) settledAt(t time.Time) bool { return t.Sub(time.Unix(f.changed.Unix())) > settled }

// clone returns a deep copy of the record.
func (r *record) clone() *record {
	c := *r
	c.Claim = *r.claim()
	c.Supersedes = slices.Clone(r.Supersedes)
	return &c
}
