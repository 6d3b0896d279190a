package runtime

import (
	"slices"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"
)

func TestRegionMounts(t *testing.T) {
	spec := containerSpec()
	before := slices.Clone(spec.Mounts)
	grants := []Grant{grantOf("aaaaaaaa", GPU0, 0), grantOf("bbbbbbbb", GPU1, 1)}
	must.NoError(t, regionMounts{grants: grants}.Modify(spec))

	must.Eq(t, before, spec.Mounts[:len(before)])
	must.Eq(t, []string{
		"/.tranche",
		"/.tranche/claims/aaaaaaaa", "/.tranche/claims/aaaaaaaa/usage",
		"/.tranche/claims/bbbbbbbb", "/.tranche/claims/bbbbbbbb/usage",
	}, destinations(spec)[len(before):])

	anchor := mountAt(t, spec, "/.tranche")
	must.Eq(t, "tmpfs", anchor.Type)
	must.SliceContains(t, anchor.Options, "ro")

	region := mountAt(t, spec, "/.tranche/claims/bbbbbbbb")
	must.Eq(t, "/run/tranche/claims/bbbbbbbb", region.Source)
	must.Eq(t, []string{"ro", "nosuid", "nodev", "noexec", "bind"}, region.Options)

	usage := mountAt(t, spec, "/.tranche/claims/bbbbbbbb/usage")
	must.Eq(t, "/run/tranche/claims/bbbbbbbb/usage", usage.Source)
	must.Eq(t, []string{"rw", "nosuid", "nodev", "noexec", "bind"}, usage.Options)
}

func TestRegionMounts_SteeredByTheJob(t *testing.T) {
	for _, destination := range []string{
		"/.tranche", "/.tranche/", "/.tranche/claims", "/.tranche/claims/aaaaaaaa/limit", "//.tranche", ".tranche/claims",
		"/tmp/../.tranche", "/./.tranche/x",
	} {
		t.Run(destination, func(t *testing.T) {
			spec := containerSpec()
			spec.Mounts = append(spec.Mounts, bind("/job/forged", destination))
			err := regionMounts{grants: []Grant{grantOf("aaaaaaaa", GPU0, 0)}}.Modify(spec)
			must.ErrorContains(t, err, destination)
			must.ErrorContains(t, err, "/job/forged")
		})
	}
	for _, destination := range []string{"/.tranchette", "/data/.tranche", "/"} {
		t.Run("not ours: "+destination, func(t *testing.T) {
			spec := &specs.Spec{Mounts: []specs.Mount{bind("/job/own", destination)}}
			must.NoError(t, regionMounts{}.Modify(spec))
		})
	}
}
