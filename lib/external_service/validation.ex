defmodule ExternalService.Validation do
  # Holds options against their declarations. The error says which option it was, what was expected and what was given.
  @moduledoc false

  alias ExternalService.{Legacy, Options}
  alias ExternalService.Options.Type

  @type group :: Options.group()

  @doc "Returns `options` with defaults filled in, or raises on the first that does not fit its declaration."
  @spec validate!(group(), term(), [atom()]) :: keyword()
  def validate!(group, options, path \\ []) do
    schema = Options.schema(group)
    check_given!(group, options, path)
    check_required!(schema, options, path)

    for {key, declared} <- schema, {:ok, value} <- [pick(options, key, declared)] do
      {key, expand(declared[:type], value, path ++ [key])}
    end
  end

  @doc "Raises on the first of `options` that does not fit its declaration; says nothing about those left out."
  @spec check_given!(group(), term(), [atom()]) :: :ok
  def check_given!(group, options, path \\ []) do
    schema = Options.schema(group)

    unless Keyword.keyword?(options),
      do: raise_invalid("expected a keyword list of options, got: #{inspect(options)}", nil, options, path)

    Enum.each(options, fn {key, value} ->
      case Keyword.fetch(schema, key) do
        {:ok, declared} -> check!(declared[:type], key, value, path)
        :error -> raise_unknown(options, schema, path)
      end
    end)
  end

  defp check_required!(schema, options, path) do
    for {key, declared} <- schema, declared[:required], not Keyword.has_key?(options, key) do
      received = inspect(Keyword.keys(options))
      raise_invalid("required #{inspect(key)} option not found, received options: #{received}", key, nil, path)
    end
  end

  defp pick(options, key, declared) do
    with :error <- Keyword.fetch(options, key), do: Keyword.fetch(declared, :default)
  end

  # Nested options get their own defaults.
  defp expand({:options, group}, value, path), do: validate!(group, value, path)
  defp expand(_type, value, _path), do: value

  # Nested options are checked with their own path, so that the error names the option and not the group around it.
  defp check!(type, key, value, path) when is_list(value) do
    case nested_group(type) do
      nil -> check_type!(type, key, value, path)
      group -> check_nested!(group, type, key, value, path)
    end
  end

  defp check!(type, key, value, path), do: check_type!(type, key, value, path)

  defp nested_group({:options, group}), do: group
  defp nested_group({:or, types}), do: Enum.find_value(types, &nested_group/1)
  defp nested_group(_type), do: nil

  defp check_nested!(group, type, key, value, path) do
    if Keyword.keyword?(value),
      do: check_given!(group, value, path ++ [key]),
      else: check_type!(type, key, value, path)
  end

  defp check_type!(type, key, value, path) do
    unless Type.valid?(type, value) do
      expected = "expected #{Type.describe(type)}#{such_as(key, value)}, got: #{inspect(value)}"
      raise_invalid("invalid value for #{inspect(key)} option: #{expected}", key, value, path)
    end
  end

  @spec raise_unknown(keyword(), keyword(), [atom()]) :: no_return()
  defp raise_unknown(options, schema, path) do
    unknown = options |> Keyword.keys() |> Enum.uniq() |> Enum.reject(&Keyword.has_key?(schema, &1))
    valid = inspect(Keyword.keys(schema), limit: :infinity)
    message = "unknown options #{inspect(unknown)}, valid options are: #{valid}"
    raise_invalid(message <> today(options, unknown), unknown, nil, path)
  end

  # Who comes from version 1 is shown today's spelling.
  defp such_as(key, value) do
    today = Legacy.spelled([{key, value}])
    if today, do: ", such as `#{today}`", else: ""
  end

  defp today(options, unknown) do
    today = Legacy.spelled(Keyword.take(options, unknown)) && Legacy.spelled(options)
    if today, do: ". In place of those of version 1 write `#{today}`", else: ""
  end

  @doc "Raises for the value of an option that no type can describe."
  @spec invalid!(atom(), term(), String.t(), [atom()]) :: no_return()
  def invalid!(key, value, why, path \\ []),
    do: raise_invalid("invalid value for #{inspect(key)} option: #{why}, got: #{inspect(value)}", key, value, path)

  @spec raise_invalid(String.t(), term(), term(), [atom()]) :: no_return()
  defp raise_invalid(message, key, value, path) do
    module =
      if Code.ensure_loaded?(NimbleOptions.ValidationError),
        do: NimbleOptions.ValidationError,
        else: ExternalService.ValidationError

    raise struct(module, message: message, key: key, value: value, keys_path: path)
  end
end
