package edit

import (
	"slices"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/runtime/runtimetest"
)

func TestRegionMounts(t *testing.T) {
	spec := runtimetest.ContainerSpec()
	before := slices.Clone(spec.Mounts)
	claims := []Claim{claimOf("aaaaaaaa", runtimetest.GPU0, 0), claimOf("bbbbbbbb", runtimetest.GPU1, 1)}
	must.NoError(t, RegionMounts{Claims: claims}.Modify(spec))

	must.Eq(t, before, spec.Mounts[:len(before)])
	must.Eq(t, []string{
		"/.tranche",
		"/.tranche/claims/aaaaaaaa", "/.tranche/claims/aaaaaaaa/usage",
		"/.tranche/claims/bbbbbbbb", "/.tranche/claims/bbbbbbbb/usage",
	}, runtimetest.Destinations(spec)[len(before):])

	anchor := runtimetest.MountAt(t, spec, "/.tranche")
	must.Eq(t, "tmpfs", anchor.Type)
	must.SliceContains(t, anchor.Options, "ro")

	region := runtimetest.MountAt(t, spec, "/.tranche/claims/bbbbbbbb")
	must.Eq(t, "/run/tranche/claims/bbbbbbbb", region.Source)
	must.Eq(t, []string{"ro", "nosuid", "nodev", "noexec", "bind"}, region.Options)

	usage := runtimetest.MountAt(t, spec, "/.tranche/claims/bbbbbbbb/usage")
	must.Eq(t, "/run/tranche/claims/bbbbbbbb/usage", usage.Source)
	must.Eq(t, []string{"rw", "nosuid", "nodev", "noexec", "bind"}, usage.Options)
}

func TestRegionMounts_SteeredByTheJob(t *testing.T) {
	for _, destination := range []string{
		"/.tranche", "/.tranche/", "/.tranche/claims", "/.tranche/claims/aaaaaaaa/limit", "//.tranche", ".tranche/claims",
		"/tmp/../.tranche", "/./.tranche/x",
	} {
		t.Run(destination, func(t *testing.T) {
			spec := runtimetest.ContainerSpec()
			spec.Mounts = append(spec.Mounts, runtimetest.Bind("/job/forged", destination))
			err := RegionMounts{Claims: []Claim{claimOf("aaaaaaaa", runtimetest.GPU0, 0)}}.Modify(spec)
			must.ErrorContains(t, err, destination)
			must.ErrorContains(t, err, "/job/forged")
		})
	}
	for _, destination := range []string{"/.tranchette", "/data/.tranche", "/"} {
		t.Run("not ours: "+destination, func(t *testing.T) {
			spec := &specs.Spec{Mounts: []specs.Mount{runtimetest.Bind("/job/own", destination)}}
			must.NoError(t, RegionMounts{}.Modify(spec))
		})
	}
}
