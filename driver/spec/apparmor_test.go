package spec

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/shoenig/test/must"
)

func TestWithAppArmor(t *testing.T) {
	list := filepath.Join(t.TempDir(), "profiles")
	must.NoError(t, os.WriteFile(list, []byte("docker-default (enforce)\nmy profile (complain)\n"), 0o600))
	host := appArmorHost{supported: func() bool { return true }, profiles: list, withDefault: oci.WithApparmorProfile}
	without := appArmorHost{supported: func() bool { return false }}
	profile := func(host appArmorHost, task TaskConfig) string {
		return apply(t, withAppArmor(&task, host)).Process.ApparmorProfile
	}
	named := []string{"apparmor=docker-default"}
	must.Eq(t, "tranche-default", profile(host, TaskConfig{}))
	must.Eq(t, "", profile(host, TaskConfig{Privileged: true}))
	must.Eq(t, "docker-default", profile(host, TaskConfig{Privileged: true, SecurityOpt: named}))
	must.Eq(t, "unconfined", profile(host, TaskConfig{SecurityOpt: []string{"apparmor=unconfined"}}))
	must.Eq(t, "", profile(without, TaskConfig{}))
	must.Eq(t, "", profile(without, TaskConfig{SecurityOpt: []string{"apparmor=unconfined"}}))

	for name, want := range map[string]string{
		"docker-default": "", "my profile": "", "tranche-default": "", "unconfined": "",
		"docker": "no such profile is loaded",
	} {
		err := (&securityOptions{apparmor: name}).checkAppArmor(host)
		if want == "" {
			must.NoError(t, err)
			continue
		}
		must.ErrorContains(t, err, want)
	}
}
