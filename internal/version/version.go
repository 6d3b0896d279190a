// Package version is the one version of all of Tranche's programs.
package version

// Version is a semantic version, as Nomad demands of plugins. A release sets it with
//
//	go build -ldflags '-X github.com/tranche-gpu/tranche/internal/version.Version=v1.2.3'
var Version = "v0.1.0-dev"
