package image

import (
	"testing"

	"github.com/shoenig/test/must"
)

func TestParseImage(t *testing.T) {
	cases := []struct {
		image     string
		reference string
		archive   string
		name      string
		err       string
	}{
		{image: "busybox", reference: "docker.io/library/busybox:latest"},
		{image: "busybox:1.36", reference: "docker.io/library/busybox:1.36"},
		{image: "org/app", reference: "docker.io/org/app:latest"},
		{image: "ghcr.io/org/app:1", reference: "ghcr.io/org/app:1"},
		{image: "127.0.0.1:5000/app", reference: "127.0.0.1:5000/app:latest"},
		{image: "localhost:5000/app:2", reference: "localhost:5000/app:2"},
		{image: "https://ghcr.io/org/app:1", reference: "ghcr.io/org/app:1"},
		{
			image:     "app:1@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
			reference: "docker.io/library/app@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
		},
		{image: "oci-archive:local/x.tar", archive: "local/x.tar"},
		{image: "docker-archive:alloc/dir/x.tar", archive: "alloc/dir/x.tar"},
		{image: "oci-archive:/local/x.tar", archive: "local/x.tar"},
		{image: "oci-archive:local/x.tar:app:1", archive: "local/x.tar", name: "app:1"},
		{image: "oci-archive:local/../../etc/x.tar", err: "one of the task's directories"},
		{image: "oci-archive:x.tar", err: "one of the task's directories"},
		{image: "Not An Image", err: `option image = "Not An Image"`},
		{image: "org/UPPER", err: `option image = "org/UPPER"`},
	}
	for _, c := range cases {
		t.Run(c.image, func(t *testing.T) {
			got, err := parseImage(c.image)
			if c.err != "" {
				must.ErrorContains(t, err, c.err)
				return
			}
			must.NoError(t, err)
			must.Eq(t, imageSource{given: c.image, reference: c.reference, archive: c.archive, name: c.name}, got)
		})
	}
}

func TestCheckPlatform(t *testing.T) {
	for _, good := range []string{"", "linux/amd64", "linux/arm64/v8", "linux/arm/v7", "arm64", "linux"} {
		must.NoError(t, Options{Image: "busybox", Platform: good}.Check(), must.Sprint(good))
	}
	for _, bad := range []string{"windows/amd64", "linux/*", "a/b/c/d", "pdp11", "linux/", "linux amd64"} {
		err := Options{Image: "busybox", Platform: bad}.Check()
		must.ErrorContains(t, err, `option platform = "`+bad+`"`)
		must.ErrorContains(t, err, `such as "linux/amd64" or "linux/arm64/v8"`)
	}
}
