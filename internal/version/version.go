// Package version is the one version of all of Tranche's programs and libraries.
package version

// Version is a semantic version, which Nomad requires of plugins. The build appends the commit, as in
// v0.2.0-dev+g1a2b3c4d5e6f, with
//
//	go build -ldflags '-X github.com/tranche-gpu/tranche/internal/version.Version=…'
var Version = Release

// Release is the version that this source is, or will be when it is released.
const Release = "v0.1.0-dev"
