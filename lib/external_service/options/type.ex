defmodule ExternalService.Options.Type do
  # The types an option can be declared with: does a value fit, and how is that said in words? A new type is one
  # clause of each function.
  @moduledoc false

  # What the core's tallies of calls can count.
  @window_ms div(0x7FFF_FFFF_FFFF_FFFF, 1_000_000)
  @window_calls 1_000_000
  # What the core's balancer can hold.
  @endpoints_max 65_536

  @type t ::
          {:integer, integer(), integer()}
          | {:share, float(), float()}
          | {:in, [term()]}
          | {:fun, arity()}
          | {:struct, module()}
          | {:list, t()}
          | {:list, t(), max :: pos_integer()}
          | :fallback
          | :endpoints
          | :balancer
          | {:options, atom()}
          | {:or, [t()]}
          | :non_neg_integer
          | :window
          | :any
          | :boolean
          | :module
          | {:backend, {callback :: atom(), arity()}}

  @spec valid?(t(), term()) :: boolean()
  def valid?({:integer, min, max}, value), do: is_integer(value) and value >= min and value <= max
  def valid?({:share, min, max}, value), do: is_number(value) and value >= min and value <= max
  def valid?({:in, values}, value), do: value in values
  def valid?({:fun, arity}, value), do: is_function(value, arity)
  def valid?({:struct, module}, value), do: is_struct(value, module)
  def valid?({:list, type}, value), do: proper_list?(value) and Enum.all?(value, &valid?(type, &1))
  def valid?({:list, type, max}, value), do: value != [] and valid?({:list, type}, value) and length(value) <= max
  def valid?(:endpoints, value), do: is_function(value, 0) or valid?({:list, :any, @endpoints_max}, value)
  def valid?(:balancer, {:hash, fun}), do: is_function(fun, 0) or is_function(fun, 1)
  def valid?(:balancer, value), do: value in [:round_robin, :random, :least_busy]
  def valid?(:fallback, value) when is_function(value), do: is_function(value, 1) or is_function(value, 2)
  def valid?(:fallback, {:value, _value}), do: true
  def valid?(:fallback, [_ | _] = list), do: proper_list?(list) and Enum.all?(list, &choice?/1)
  def valid?(:fallback, value), do: is_atom(value) and not is_boolean(value)
  def valid?({:options, _group}, value), do: Keyword.keyword?(value)
  def valid?({:or, types}, value), do: Enum.any?(types, &valid?(&1, value))
  def valid?(:non_neg_integer, value), do: is_integer(value) and value >= 0
  def valid?(:any, _value), do: true
  def valid?(:window, {:time, ms}), do: valid?({:integer, 1, @window_ms}, ms)
  def valid?(:window, {:calls, n}), do: valid?({:integer, 1, @window_calls}, n)
  def valid?(:window, _value), do: false
  def valid?(:boolean, value), do: is_boolean(value)
  def valid?(:module, value), do: is_atom(value) and value not in [nil, true, false]
  def valid?({:backend, _callback} = type, {module, own}), do: Keyword.keyword?(own) and valid?(type, module)

  def valid?({:backend, {callback, arity}}, value),
    do: valid?(:module, value) and Code.ensure_loaded?(value) and function_exported?(value, callback, arity)

  @spec describe(t()) :: String.t()
  def describe({:integer, 0, max}), do: "non negative integer up to #{max}"
  def describe({:integer, 1, max}), do: "positive integer up to #{max}"
  def describe({:integer, min, max}), do: "integer from #{min} to #{max}"
  def describe({:share, min, max}), do: "number from #{min} to #{max}"
  def describe({:in, [value]}), do: inspect(value)
  def describe({:in, values}), do: "one of #{inspect(values)}"
  def describe({:fun, arity}), do: "function of arity #{arity}"
  def describe({:struct, module}), do: "#{inspect(module)} struct"
  def describe({:list, :any}), do: "list"
  def describe({:list, type}), do: "list of #{describe(type)}s"
  def describe({:list, type, max}), do: "list of 1 to #{max}, each a #{describe(type)}"

  def describe(:endpoints), do: "list of 1 to #{@endpoints_max} endpoints or function of arity 0"

  def describe(:balancer),
    do: "one of [:round_robin, :random, :least_busy] or {:hash, function of arity 0 or 1}"

  def describe(:fallback),
    do: "function of one or two arguments, name of one, {:value, term}, or list of {matcher, fallback}"

  def describe({:options, _group}), do: "keyword list"
  def describe({:or, types}), do: Enum.map_join(types, " or ", &describe/1)
  def describe(:non_neg_integer), do: "non negative integer"
  def describe(:any), do: "anything"

  def describe(:window),
    do: "{:time, ms} with up to #{@window_ms} ms or {:calls, n} with up to #{@window_calls} calls"

  def describe(:boolean), do: "boolean"
  def describe(:module), do: "module"
  def describe({:backend, {callback, arity}}), do: "module with #{callback}/#{arity} or {module, keyword list}"

  # Of a list of fallbacks: whom it is for, and what.
  defp choice?({matcher, fallback}),
    do: (is_atom(matcher) or is_function(matcher, 1)) and fallback != nil and valid?(:fallback, fallback)

  defp choice?(_other), do: false

  defp proper_list?(value), do: is_list(value) and List.improper?(value) == false
end
