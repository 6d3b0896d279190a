package image

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
)

func TestOpenArchive_DoesNotWaitForAFIFO(t *testing.T) {
	cfg := &drivers.TaskConfig{Name: "web", AllocDir: t.TempDir()}
	must.NoError(t, os.MkdirAll(cfg.TaskDir().LocalDir, 0o755))
	must.NoError(t, unix.Mkfifo(filepath.Join(cfg.TaskDir().LocalDir, "image.tar"), 0o644))
	opened := make(chan error, 1)
	go func() {
		_, err := openArchive(cfg, imageSource{archive: "local/image.tar"})
		opened <- err
	}()
	select {
	case err := <-opened:
		must.ErrorContains(t, err, "local/image.tar is no regular file")
	case <-time.After(time.Minute):
		t.Fatal("it waits for somebody to write")
	}
}
