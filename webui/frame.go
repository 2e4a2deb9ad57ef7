package webui

import (
	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"
)

// frame is what every page has around its content. Text and attributes are escaped as they are rendered; g.Raw, which
// escapes nothing, is for the constants of this file alone.
type frame struct {
	assets         assets
	title, gateway string
}

// page returns the whole document. head goes to the end of its head.
func (f frame) page(head g.Group, body g.Node) g.Node {
	title := f.title
	if f.gateway != "" {
		title += " · " + f.gateway
	}
	return h.Doctype(h.HTML(h.Lang("en"),
		h.Head(
			h.Meta(h.Charset("utf-8")),
			h.Meta(h.Name("viewport"), h.Content("width=device-width, initial-scale=1")),
			h.Meta(h.Name("color-scheme"), h.Content("light dark")),
			h.TitleEl(g.Text(title)),
			h.Link(h.Rel("stylesheet"), h.Href(f.assets["style.css"].url)),
			head,
		),
		body,
	))
}

// door returns a page with a single card, for who has not come in.
func (f frame) door(level string, content ...g.Node) g.Node {
	return f.page(g.Group{f.tabIcon(level)}, h.Body(h.Class("door"), h.Main(brand(), g.Group(content))))
}

// tabIcon is what the browser shows beside the title.
func (f frame) tabIcon(level string, more ...g.Node) g.Node {
	return h.Link(h.Rel("icon"), h.Type("image/svg+xml"), h.Href(f.iconURL(level)), g.Group(more))
}

func (f frame) iconURL(level string) string {
	if level == levelIdle {
		level = levelOK
	}
	return f.assets["icon-"+level+".svg"].url
}

func errorPage(f frame, text string) g.Node {
	return f.door(levelError,
		h.H1(g.Text(f.title)),
		h.P(h.Class("lead"), g.Text(text)),
		h.P(h.A(h.Class("button"), h.Href("/"), g.Text("Back to the status page"))),
	)
}

func brand() g.Node {
	return h.P(h.Class("brand"),
		h.SVG(h.Class("logo"), g.Attr("viewBox", "0 0 24 24"), h.Aria("hidden", "true"),
			g.Raw(`<rect x="2.5" y="8" width="19" height="11" rx="2.5"/><path d="M6.5 13.5h.01M10 13.5h.01M14 13.5h4M8.2 4.8a5.4 5.4 0 0 1 7.6 0"/>`)),
		h.Span(g.Text("Edge Gateway")),
	)
}

// icon says the level to who does not see its colour.
func icon(level string) g.Node {
	var shape string
	switch level {
	case levelOK:
		shape = `<circle cx="12" cy="12" r="10"/><path d="m7.5 12.4 3 3 6-6.6"/>`
	case levelWarning:
		shape = `<path class="body" d="M12 2.8 22.4 21H1.6Z"/><path d="M12 9.5v5M12 17.8h.01"/>`
	case levelError:
		shape = `<path class="body" d="M8 2h8l6 6v8l-6 6H8l-6-6V8Z"/><path d="M12 7v6M12 16.7h.01"/>`
	default:
		shape = `<circle cx="12" cy="12" r="10"/><path d="M8 12h.01M12 12h.01M16 12h.01"/>`
	}
	return h.SVG(h.Class("icon"), g.Attr("viewBox", "0 0 24 24"), h.Aria("hidden", "true"), g.Raw(shape))
}

// token is the hidden field that proves that a form was sent from this page.
func token(value string) g.Node {
	return h.Input(h.Type("hidden"), h.Name("token"), h.Value(value))
}

// note returns a paragraph, or nothing where there is no text.
func note(class, text string) g.Node {
	return g.If(text != "", h.P(h.Class(class), g.Text(text)))
}
