// Command dockerfile-lint prints what BuildKit's own linter finds in the Dockerfile on its standard input, for each of
// the targets that are its arguments: a line "RULE: what" for each finding.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"

	"github.com/moby/buildkit/client/llb"
	"github.com/moby/buildkit/client/llb/sourceresolver"
	"github.com/moby/buildkit/frontend/dockerfile/dockerfile2llb"
	"github.com/moby/buildkit/frontend/dockerui"
	"github.com/opencontainers/go-digest"
)

// noRegistry answers for every base image with an empty configuration: the linter only looks at the Dockerfile.
type noRegistry struct{}

func (noRegistry) ResolveImageConfig(
	_ context.Context, name string, _ sourceresolver.Opt,
) (string, digest.Digest, []byte, error) {
	return name, digest.FromString(name), []byte(`{"architecture":"amd64","os":"linux","config":{}}`), nil
}

func main() {
	content, err := io.ReadAll(os.Stdin)
	if err != nil {
		log.Fatal(err)
	}
	for _, target := range os.Args[1:] {
		source := llb.NewSourceMap(nil, "Dockerfile", "Dockerfile", content)
		source.Definition = &llb.Definition{}
		found, err := dockerfile2llb.DockerfileLint(context.Background(), content, dockerfile2llb.ConvertOpt{
			Config:       dockerui.Config{Target: target},
			MetaResolver: noRegistry{},
			SourceMap:    source,
		})
		if err != nil {
			log.Fatal(err)
		}
		if found.Error != nil {
			log.Fatal(found.Error.Message)
		}
		for _, warning := range found.Warnings {
			fmt.Printf("%s: %s\n", warning.RuleName, warning.Detail)
		}
	}
}
