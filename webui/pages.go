package webui

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"html/template"
	"net/http"
	"path"

	"github.com/go-chi/chi/v5"
)

//go:embed assets templates
var files embed.FS

// pages are the templates and what they refer to.
type pages struct {
	templates *template.Template
	assets    map[string]asset
}

type asset struct {
	kind string
	data []byte
	url  string // with a hash of data, so that browsers may keep it for ever
}

// frame is what every page has.
type frame struct {
	Title   string
	Gateway string
	Style   string
	Script  string
	Icons   map[string]string // by level
}

// errorPage is a frame with a message.
type errorPage struct {
	frame
	Heading string
	Text    string
}

func loadPages() (*pages, error) {
	p := &pages{assets: map[string]asset{}}
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
		p.assets[e.Name()] = asset{kinds[path.Ext(e.Name())], data, "/assets/" + e.Name() + "?v=" + hex.EncodeToString(sum[:6])}
	}
	p.templates, err = template.ParseFS(files, "templates/*.html")
	if err != nil {
		return nil, fmt.Errorf("page: parse templates: %w", err)
	}
	return p, nil
}

func (p *pages) frame(title, gateway string) frame {
	icons := map[string]string{}
	for _, level := range []string{levelOK, levelWarning, levelError} {
		icons[level] = p.assets["icon-"+level+".svg"].url
	}
	return frame{title, gateway, p.assets["style.css"].url, p.assets["page.js"].url, icons}
}

func (s *Server) asset(w http.ResponseWriter, r *http.Request) error {
	return s.writeAsset(w, chi.URLParam(r, "name"))
}

// favicon answers browsers that ask for it without having read the page.
func (s *Server) favicon(w http.ResponseWriter, _ *http.Request) error {
	return s.writeAsset(w, "icon-ok.svg")
}

func (s *Server) writeAsset(w http.ResponseWriter, name string) error {
	a, ok := s.pages.assets[name]
	if !ok {
		return &httpError{http.StatusNotFound, "There is no such page."}
	}
	w.Header().Set("Content-Type", a.kind)
	w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	_, _ = w.Write(a.data) // an error here is a connection that has gone
	return nil
}
