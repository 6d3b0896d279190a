package images

import (
	"archive/tar"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// SaveDockerArchive writes the image to file as `docker save` does, under the name ref.
func SaveDockerArchive(img v1.Image, ref, file string) error {
	tag, err := name.NewTag(ref)
	if err != nil {
		return fmt.Errorf("image name %q: %w", ref, err)
	}
	return tarball.WriteToFile(file, tag, img)
}

// SaveOCIArchive writes the image to file as a tar of an OCI image layout. ref becomes its name, both as an OCI
// reference name and as the name that containerd imports it under; it may be empty.
func SaveOCIArchive(img v1.Image, ref, file string) error {
	dir, err := os.MkdirTemp(filepath.Dir(file), ".oci-layout-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	l, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	var opts []layout.Option
	if ref != "" {
		opts = append(opts, layout.WithAnnotations(map[string]string{
			"org.opencontainers.image.ref.name": ref,
			"io.containerd.image.name":          ref,
		}))
	}
	if err := l.AppendImage(img, opts...); err != nil {
		return err
	}
	return tarDirectory(dir, file)
}

// tarDirectory writes everything in dir to file, with paths relative to dir.
func tarDirectory(dir, file string) (err error) {
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := out.Close(); err == nil {
			err = closeErr
		}
	}()
	w := tar.NewWriter(out)
	err = filepath.WalkDir(dir, func(p string, entry fs.DirEntry, err error) error {
		if err != nil || p == dir {
			return err
		}
		rel, err := filepath.Rel(dir, p)
		if err != nil {
			return err
		}
		return tarEntry(w, p, rel, entry)
	})
	if err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	return w.Close()
}

func tarEntry(w *tar.Writer, p, rel string, entry fs.DirEntry) error {
	info, err := entry.Info()
	if err != nil {
		return err
	}
	header, err := tar.FileInfoHeader(info, "")
	if err != nil {
		return err
	}
	header.Name, header.ModTime = rel, buildTime
	if entry.IsDir() {
		header.Name += "/"
		return w.WriteHeader(header)
	}
	if err := w.WriteHeader(header); err != nil {
		return err
	}
	f, err := os.Open(p)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(w, f)
	return err
}
