defmodule ExternalService.Migration do
  # Finds what code for version 1 has to write differently today. It reads the code and runs none of it.
  @moduledoc false

  alias ExternalService.Legacy

  @type place :: %{line: pos_integer(), found: String.t(), today: String.t()}

  # A file without any of these words is about something else.
  @about ~r/ExternalService|external_service|external_call|fuse_strategy|fuse_refresh|fuse_blown|fuse_not_found/

  @functions %{
    external_call: :call,
    external_call!: :call!,
    external_call_async: :call_async,
    external_call_async_stream: :call_async_stream,
    reset_fuse: :reset
  }

  @errors %{
    retries_exhausted: {ExternalService.RetriesExhausted, :reason},
    fuse_blown: {ExternalService.CircuitBreakerOpen, :service},
    fuse_not_found: {ExternalService.ServiceNotStarted, :service}
  }

  @exceptions %{
    RetriesExhaustedError: ExternalService.RetriesExhausted,
    FuseBlownError: ExternalService.CircuitBreakerOpen,
    FuseNotFoundError: ExternalService.ServiceNotStarted
  }

  @doc "Returns the places in the source, in their order, or why it could not be read."
  @spec places(String.t()) :: {:ok, [place()]} | {:error, String.t()}
  def places(source) do
    if source =~ @about, do: source |> parse() |> look(), else: {:ok, []}
  end

  # Literals are wrapped, so that they have lines and numbers keep their underscores.
  defp parse(source) do
    encoder = fn literal, meta -> {:ok, {:__block__, meta, [literal]}} end
    Code.string_to_quoted(source, literal_encoder: encoder, token_metadata: true, emit_warnings: false)
  end

  defp look({:ok, ast}) do
    {_ast, places} = Macro.prewalk(ast, [], fn node, places -> enter(node, places) end)
    {:ok, Enum.sort_by(Enum.reverse(places), & &1.line)}
  end

  defp look({:error, {meta, message, token}}) do
    message = if is_tuple(message), do: message |> Tuple.to_list() |> Enum.join(), else: message
    {:error, "line #{meta[:line]}: " <> hd(String.split("#{message}#{token}", "\n"))}
  end

  # The decorators are called as the functions of old were, and stay.
  defp enter({:@, _meta, [{:decorate, _, _}]}, places), do: {nil, places}

  # The name of a deprecated module, where it is used, stands for the whole line.
  defp enter({:use, meta, [{:__aliases__, _, [:ExternalService, :Gateway]} | options]}, places),
    do: {options, [place(meta, "use ExternalService.Gateway", "use ExternalService") | places]}

  defp enter(node, places), do: {node, Enum.reverse(found(node), places)}

  defp found([_ | _] = list), do: old_options(list)
  defp found({:%{}, _meta, fields}), do: old_options(fields)
  defp found({:__block__, meta, [{_, _}]} = node), do: node |> plain() |> old_error(meta)

  defp found({:__aliases__, meta, names}) do
    case @exceptions[List.last(names)] do
      nil -> []
      today -> [place(meta, Enum.map_join(names, ".", &name/1), inspect(today))]
    end
  end

  defp found({{:., _, [module, name]}, meta, _arguments}) when is_map_key(@functions, name) do
    module = Legacy.line(module)
    [place(meta, "#{module}.#{name}", "#{module}.#{@functions[name]}")]
  end

  defp found({name, meta, _arguments}) when is_map_key(@functions, name),
    do: [place(meta, "#{name}", "#{@functions[name]}")]

  defp found(_node), do: []

  defp old_options(list) do
    pairs = Enum.map(list, &pair/1)

    if Enum.all?(pairs) do
      plain = for {key, _meta, value} <- pairs, do: {key, plain(value)}

      for {keys, today} <- Legacy.fragments(plain) do
        {_key, meta, _value} = List.keyfind(pairs, hd(keys), 0)
        place(meta, Legacy.text(Keyword.take(plain, keys)), Legacy.text(today))
      end
    else
      []
    end
  end

  # `key: value`, or the same as `{:key, value}`.
  defp pair({{:__block__, meta, [key]}, value}) when is_atom(key), do: {key, meta, value}
  defp pair({:__block__, _meta, [{_, _} = pair]}), do: pair(pair)
  defp pair(_other), do: nil

  defp old_error({:error, {kind, detail}} = old, meta) when is_map_key(@errors, kind) do
    {module, field} = @errors[kind]
    today = "{:error, %#{inspect(module)}{#{context(field, detail)}}}"
    [place(meta, Legacy.line(old), today)]
  end

  defp old_error(_other, _meta), do: []

  defp context(field, detail) do
    case Legacy.line(detail) do
      "_" <> _ -> ""
      detail -> "context: %{#{field}: #{detail}}"
    end
  end

  # Without the wrapping of all literals but numbers and texts.
  defp plain(ast) do
    Macro.postwalk(ast, fn
      {:__block__, _meta, [literal]} when is_atom(literal) or is_list(literal) -> literal
      {:__block__, _meta, [{_, _} = pair]} -> pair
      node -> node
    end)
  end

  # A part of a module's name may be code.
  defp name(part) when is_atom(part), do: Atom.to_string(part)
  defp name(code), do: Legacy.line(code)

  defp place(meta, found, today), do: %{line: meta[:line], found: found, today: today}
end
