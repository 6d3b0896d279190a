package userns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/tranche-gpu/tranche/driver/storage"
)

// HandOver has handOver give what is in the task's own directories, local and secrets, to the container's IDs. What an earlier
// run of the task left there under other IDs follows. The alloc directory is left as it is, since the group's other tasks use
// it too; Nomad lets everybody write there.
func HandOver(cfg *drivers.TaskConfig, handOver func(dir string) error) error {
	for _, dir := range ownDirs(cfg) {
		if err := handOver(dir); err != nil {
			return fmt.Errorf("give the task's directory %s to the IDs of its user namespace: %w", dir, err)
		}
	}
	return nil
}

func ownDirs(cfg *drivers.TaskConfig) []string {
	dirs := cfg.TaskDir()
	own := []string{dirs.LocalDir, dirs.SecretsDir}
	// Only tasks with anonymous volumes have this one.
	if volumes := filepath.Join(dirs.Dir, storage.AnonymousDir); isDir(volumes) {
		own = append(own, volumes)
	}
	return own
}

func isDir(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.IsDir()
}

// HandOverDir changes the owners of everything in dir to IDs of the range to, a part of all: a file of root's becomes the
// container's root's. Names in it are the task's to choose, and an attacker would put
// links there, to have the host's files given to him: links are changed themselves and never followed, a file with
// further names is left alone, since one of them may lie elsewhere, and so is what is mounted there.
func HandOverDir(dir string, all, to Range) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	var device uint64
	return fs.WalkDir(root.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		var info fs.FileInfo
		if err == nil {
			info, err = root.Lstat(name)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil // A template that was rendered again just now.
		}
		if err != nil {
			return err
		}
		stat := info.Sys().(*syscall.Stat_t)
		if name == "." {
			device = stat.Dev
		}
		if stat.Dev != device {
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if info.Mode().IsRegular() && stat.Nlink > 1 {
			return nil
		}
		uid, gid := to.hostID(stat.Uid, all), to.hostID(stat.Gid, all)
		if uid == stat.Uid && gid == stat.Gid {
			return nil
		}
		return root.Lchown(name, int(uid), int(gid))
	})
}

// hostID is what an owner becomes: an ID as images and jobspecs know it, or one of an earlier run's range, becomes that
// of the range. Others are the host's own, and stay.
func (r Range) hostID(id uint32, all Range) uint32 {
	switch offset := uint64(id) - all.First; {
	case id < PerContainer:
		return uint32(r.First + uint64(id))
	case uint64(id) >= all.First && offset < all.Count:
		return uint32(r.First + offset%PerContainer)
	}
	return id
}
