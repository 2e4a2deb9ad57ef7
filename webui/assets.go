package webui

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"net/http"
	"path"

	"github.com/go-chi/chi/v5"
)

//go:embed assets
var files embed.FS

// assets are what the pages refer to, by file name.
type assets map[string]asset

type asset struct {
	kind string
	data []byte
	url  string // with a hash of data, so that browsers may keep it for ever
}

func loadAssets() (assets, error) {
	list := assets{}
	entries, err := files.ReadDir("assets")
	if err != nil {
		return nil, fmt.Errorf("page: read assets: %w", err)
	}
	kinds := map[string]string{".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
	for _, e := range entries {
		data, err := files.ReadFile("assets/" + e.Name())
		if err != nil {
			return nil, fmt.Errorf("page: read assets: %w", err)
		}
		sum := sha256.Sum256(data)
		list[e.Name()] = asset{kinds[path.Ext(e.Name())], data, "/assets/" + e.Name() + "?v=" + hex.EncodeToString(sum[:6])}
	}
	return list, nil
}

func (s *Server) asset(w http.ResponseWriter, r *http.Request) error {
	return s.writeAsset(w, chi.URLParam(r, "name"))
}

// favicon answers browsers that ask for it without having read the page.
func (s *Server) favicon(w http.ResponseWriter, _ *http.Request) error {
	return s.writeAsset(w, "icon-ok.svg")
}

func (s *Server) writeAsset(w http.ResponseWriter, name string) error {
	a, ok := s.assets[name]
	if !ok {
		return &httpError{http.StatusNotFound, "There is no such page."}
	}
	w.Header().Set("Content-Type", a.kind)
	w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	_, _ = w.Write(a.data) // an error here is a connection that has gone
	return nil
}
