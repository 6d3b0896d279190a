// Package images builds the container images that the tests and the demo run, from what lies on this machine, and hands
// them out as archives or from a registry. No network is needed.
package images

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"sort"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// buildTime is the time of every file in the images, so that the same content has the same digest.
var buildTime = time.Unix(0, 0).UTC()

// File is one file, link or directory to put into an image.
type File struct {
	// Path is where it lies in the image. Missing parent directories are made.
	Path string
	// Exactly one of these says what it is: the content itself, a file on this machine to copy, the target of a
	// symbolic link, a directory, or a FIFO.
	Content string
	From    string
	Link    string
	Dir     bool
	FIFO    bool
	// Mode defaults to 0644, to the mode of From where that is given, and to 0755 for a directory.
	Mode int64
	// Owner is the number of the user and of the group that it belongs to.
	Owner int
}

// Busybox is an image of the machine's statically linked busybox with a link per applet, the users root, nobody and
// app (1000:1000, member of the group extra), and /tmp.
func Busybox() (v1.Image, error) {
	binary, err := findBusybox()
	if err != nil {
		return nil, err
	}
	applets, err := exec.Command(binary, "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("ask %s for its applets: %w", binary, err)
	}
	files := []File{
		{Path: "/bin/busybox", From: binary},
		{Path: "/tmp", Dir: true, Mode: 0o1777},
		{Path: "/root", Dir: true, Mode: 0o700},
		{Path: "/etc/passwd", Content: "root:x:0:0:root:/root:/bin/sh\n" +
			"app:x:1000:1000::/tmp:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n"},
		{Path: "/etc/group", Content: "root:x:0:\napp:x:1000:\nextra:x:2000:app\nnogroup:x:65534:\n"},
	}
	for _, applet := range strings.Fields(string(applets)) {
		if applet != "busybox" {
			files = append(files, File{Path: "/bin/" + applet, Link: "busybox"})
		}
	}
	base, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{
		Architecture: "amd64", OS: "linux",
		RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{
			Env: []string{"PATH=/bin:/sbin:/usr/bin:/usr/sbin"},
			Cmd: []string{"/bin/sh"},
		},
	})
	if err != nil {
		return nil, err
	}
	return WithFiles(base, files...)
}

// WithFiles returns the image with one more layer that holds the files.
func WithFiles(img v1.Image, files ...File) (v1.Image, error) {
	data, err := archive(files)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(data)), nil
	})
	if err != nil {
		return nil, err
	}
	return mutate.AppendLayers(img, layer)
}

// WithConfig returns the image with its configuration (entrypoint, user, environment, …) changed by edit.
func WithConfig(img v1.Image, edit func(*v1.Config)) (v1.Image, error) {
	file, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config := *file.Config.DeepCopy()
	edit(&config)
	return mutate.Config(img, config)
}

// findBusybox returns a busybox that needs no libraries, since the image has none.
func findBusybox() (string, error) {
	for _, name := range []string{"busybox-static", "busybox"} {
		if found, err := exec.LookPath(name); err == nil {
			return found, nil
		}
	}
	return "", fmt.Errorf("no busybox on PATH to build the test image from; install the package busybox-static")
}

// archive writes the files, and the directories above them, as a tar stream.
func archive(files []File) ([]byte, error) {
	entries := map[string]File{}
	for _, f := range files {
		f.Path = strings.TrimPrefix(path.Clean("/"+f.Path), "/")
		for dir := path.Dir(f.Path); dir != "."; dir = path.Dir(dir) {
			if _, ok := entries[dir]; !ok {
				entries[dir] = File{Path: dir, Dir: true}
			}
		}
		entries[f.Path] = f
	}
	names := make([]string, 0, len(entries))
	for name := range entries {
		names = append(names, name)
	}
	sort.Strings(names)

	var buffer bytes.Buffer
	w := tar.NewWriter(&buffer)
	for _, name := range names {
		if err := writeEntry(w, entries[name]); err != nil {
			return nil, fmt.Errorf("put /%s into the image: %w", name, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return buffer.Bytes(), nil
}

func writeEntry(w *tar.Writer, f File) error {
	header := &tar.Header{Name: f.Path, Mode: f.Mode, Uid: f.Owner, Gid: f.Owner, ModTime: buildTime,
		Format: tar.FormatPAX}
	content := []byte(f.Content)
	switch {
	case f.Dir:
		header.Typeflag, header.Name = tar.TypeDir, f.Path+"/"
		setDefaultMode(header, 0o755)
	case f.FIFO:
		header.Typeflag = tar.TypeFifo
		setDefaultMode(header, 0o644)
	case f.Link != "":
		header.Typeflag, header.Linkname = tar.TypeSymlink, f.Link
		setDefaultMode(header, 0o777)
	case f.From != "":
		info, err := os.Stat(f.From)
		if err != nil {
			return err
		}
		if content, err = os.ReadFile(f.From); err != nil {
			return err
		}
		setDefaultMode(header, int64(info.Mode().Perm()))
	default:
		setDefaultMode(header, 0o644)
	}
	if header.Typeflag == 0 {
		header.Typeflag, header.Size = tar.TypeReg, int64(len(content))
	}
	if err := w.WriteHeader(header); err != nil {
		return err
	}
	_, err := w.Write(content[:header.Size])
	return err
}

func setDefaultMode(header *tar.Header, mode int64) {
	if header.Mode == 0 {
		header.Mode = mode
	}
}
