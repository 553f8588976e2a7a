# SPDX-License-Identifier: Apache-2.0

# In place of the :decorator library, where that is not installed.
if match?({:error, _}, :code.lib_dir(:decorator)) do
  defmodule Decorator.Define do
    @moduledoc """
    Decorators with the part of the interface of `Decorator.Define` that is used here: a module that uses it names its
    decorators and their arities, and for each has a function that gets the arguments, the body and a context, as code.
    """

    defmacro __using__(decorators) do
      quote do
        unquote_splicing(Enum.map(decorators, &decorator(&1, __CALLER__.module)))

        defmacro __using__(_options) do
          decorators = unquote(decorators)

          quote do
            import unquote(__MODULE__), only: unquote(decorators)
            Module.register_attribute(__MODULE__, :decorate, accumulate: true)
            Module.register_attribute(__MODULE__, :decorated, accumulate: true)
            @on_definition Decorator.Define
            @before_compile Decorator.Define
          end
        end
      end
    end

    # What stands after `@decorate` is a macro: its arguments are kept as code.
    defp decorator({name, arity}, module) do
      arguments = Macro.generate_arguments(arity, module)

      quote do
        defmacro unquote(name)(unquote_splicing(arguments)),
          do: Macro.escape({unquote(module), unquote(name), unquote(arguments)})
      end
    end

    def __on_definition__(env, kind, name, arguments, guards, body) do
      for decorator <- Module.get_attribute(env.module, :decorate) || [],
          do: Module.put_attribute(env.module, :decorated, {decorator, kind, name, arguments, guards, body})

      Module.delete_attribute(env.module, :decorate)
    end

    defmacro __before_compile__(env) do
      for {decorator, kind, name, arguments, [], [do: body]} <- Module.get_attribute(env.module, :decorated) do
        {module, function, given} = decorator
        context = %{name: name, arity: length(arguments), args: arguments, module: env.module}
        body = apply(module, function, given ++ [body, context])

        quote do
          defoverridable [{unquote(name), unquote(length(arguments))}]
          unquote(kind)(unquote(name)(unquote_splicing(arguments)), do: unquote(body))
        end
      end
    end
  end
end
