package claim

import (
	"os"
	"slices"
	"syscall"
	"time"
)

// seen are the records that were read before, by the names of their files, so that with many claims only those are read
// that have changed. Who has the lock's turn has these.
type recordCache map[string]cachedRecord

type cachedRecord struct {
	stamp  fileStamp
	record *record
}

// fileStamp is what changes whenever a file's content does, or another file gets its name: whoever writes cannot help it, nor
// set it back, as the kernel sets the time of the last change (ctime).
type fileStamp struct {
	device, inode   uint64
	size            int64
	changed, edited syscall.Timespec
}

// settled is for how long a file must not have changed, if it is to be known by its stamp. File systems count time in
// steps, two seconds at most, and a second change within a step would leave the same stamp.
const settled = 3 * time.Second

func stampOfFile(info os.FileInfo) (fileStamp, bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.Mode().IsRegular() {
		return fileStamp{}, false
	}
	return fileStamp{device: st.Dev, inode: st.Ino, size: st.Size, changed: st.Ctim, edited: st.Mtim}, true
}

// find gives the record of a file that is as it was when it was read.
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

// settledAt tells whether the file was last changed long enough before a time. One from the future was not.
func (f fileStamp) settledAt(t time.Time) bool { return t.Sub(time.Unix(f.changed.Unix())) > settled }

// clone is a copy of the record that may be changed.
func (r *record) clone() *record {
	c := *r
	c.Claim = *r.claim()
	c.Supersedes = slices.Clone(r.Supersedes)

	return &c
}
