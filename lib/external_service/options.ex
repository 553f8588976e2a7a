defmodule ExternalService.Options do
  # What is asked about the declared options (`Options.Declarations`): validation, the option lists in the documentation and
  # the tests all read those declarations through this module.
  @moduledoc false

  alias ExternalService.Options.{Declarations, Type}

  @schemas Declarations.all()

  # Lists of pairs that are no options.
  @whole [:fallback, :endpoints]

  @type group ::
          :start
          | :circuit_breaker
          | :half_open
          | :reset_backoff
          | :retry
          | :budget
          | :endpoint
          | :rate_limit
          | :concurrency
          | :open
          | :call
          | :insights
          | :simulate

  @doc "Returns the options of a group that have a default, with it."
  @spec defaults(group()) :: keyword()
  def defaults(group) do
    for {key, declared} <- schema(group), {:ok, default} <- [Keyword.fetch(declared, :default)], do: {key, default}
  end

  @doc "Returns the names of the groups."
  @spec groups() :: [group()]
  def groups, do: Map.keys(@schemas)

  @doc "Returns the declarations of one group of options."
  @spec schema(group()) :: keyword(keyword())
  def schema(group), do: Map.fetch!(@schemas, group)

  @doc """
  Returns `options` with `overrides` on top.

  Keyword lists are merged key by key, at every depth, and so are maps; anything else is replaced, and so are lists whose
  order says something.
  """
  @spec merge(term(), term()) :: term()
  def merge([{_, _} | _] = options, []), do: options

  def merge([{_, _} | _] = options, [{_, _} | _] = overrides),
    do: Keyword.merge(options, overrides, &merge/3)

  def merge(options, overrides)
      when is_map(options) and is_map(overrides) and not is_struct(options) and not is_struct(overrides),
      do: Map.merge(options, overrides, fn _key, old, new -> merge(old, new) end)

  def merge(_options, overrides), do: overrides

  defp merge(key, _old, new) when key in @whole, do: new
  defp merge(_key, old, new), do: merge(old, new)

  @doc "Returns the Markdown list of a group's options, for a module's documentation."
  @spec docs(group()) :: String.t()
  def docs(group) do
    Enum.map_join(schema(group), "\n", fn {key, declared} ->
      default = if Keyword.has_key?(declared, :default), do: " Default: `#{inspect(declared[:default])}`."
      "  * `#{inspect(key)}` (#{Type.describe(declared[:type])}) - #{declared[:doc]}#{default}"
    end)
  end
end
