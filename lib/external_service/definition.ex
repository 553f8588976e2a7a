defmodule ExternalService.Definition do
  # Where the options of `use ExternalService` go.
  @moduledoc false

  @doc "Defines `@external_service`, the name, and `__external_service__/0`, the options, in the using module."
  # Options that hold an anonymous function can not be kept in a module attribute: they become the body of a function.
  # All others are evaluated here and now.
  @spec quoted(Macro.t()) :: Macro.t()
  def quoted(options) do
    if anonymous_function?(options) do
      quote do
        @external_service Keyword.get(unquote(options), :name, __MODULE__)
        defp __external_service__, do: unquote(options)
      end
    else
      quote do
        @external_service_options unquote(options)
        @external_service Keyword.get(@external_service_options, :name, __MODULE__)
        defp __external_service__, do: @external_service_options
      end
    end
  end

  defp anonymous_function?(ast) do
    {_ast, found?} =
      Macro.prewalk(ast, false, fn
        {:fn, _meta, [_ | _]} = node, _found -> {node, true}
        {:&, _meta, [_]} = node, _found -> {node, true}
        node, found -> {node, found}
      end)

    found?
  end
end
